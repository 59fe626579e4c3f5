package app

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"runtime"

	"github.com/shirou/gopsutil/v4/mem"

	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/devices"
	"reveille/runner/engine"
	"reveille/runner/host"
)

// Detect detects this machine's devices and their default budgets, as a runner without flags does.
func Detect(ctx context.Context, enginesDir []string) host.Hardware {
	return detect(ctx, HostSettings{EnginesDir: enginesDir}, parsed{}, slog.New(slog.DiscardHandler))
}

// detect detects and logs this machine's devices. Flags take precedence: kinds of device that --devices leaves out are
// not detected.
func detect(ctx context.Context, s HostSettings, p parsed, log *slog.Logger) host.Hardware {
	found := devices.Detect(ctx, sources(s, p))
	kinds := p.devices
	if kinds == 0 {
		kinds = found.Kinds()
	}
	budget := found.Budget(kinds)
	maps.Copy(budget, p.budget)
	cards := found.GPUMemory(kinds)
	if p.budget[policy.GPU] > 0 {
		cards = nil
	}
	for card, n := range p.cards {
		if cards[card] == 0 {
			log.Warn("--memory-budget names a GPU that this machine does not list", "gpu", card, "known", cards.Names())
			continue
		}
		budget[policy.GPU] += n - cards[card]
		cards[card] = n
	}
	log.Info("devices of this machine", "found", found.String(), "missing", found.Missing, "budget", placement.FormatMemory(budget, cards))
	return host.Hardware{Devices: kinds, Budget: budget, Totals: found.Totals(), Cards: cards, Found: found}
}

// freeMemory reads the free main memory, and the free memory of the GPUs if kinds includes them.
func freeMemory(ctx context.Context, kinds policy.Devices, s HostSettings, p parsed) devices.Found {
	cfg := devices.Config{}
	if kinds.Has(policy.GPU) {
		cfg = sources(s, p)
		cfg.Kinds = policy.GPU
	}
	cfg.Memory, cfg.Free = mainMemory()
	return devices.Detect(ctx, cfg)
}

// sources returns how devices are detected.
func sources(s HostSettings, p parsed) devices.Config {
	cfg := devices.Config{
		Kinds: p.devices, Apple: runtime.GOOS == "darwin" && runtime.GOARCH == "arm64", Files: os.DirFS("/"),
		Run:       devices.Command{Env: func(program string) []string { return engine.QueryEnviron(program, os.Environ()) }}.Run,
		LookupEnv: os.LookupEnv,
	}
	cfg.Memory, cfg.Free = mainMemory()
	if p.devices == 0 {
		cfg.Kinds = policy.GPU | policy.NPU
	}
	recipes, err := s.recipes()
	if err == nil {
		llamacpp := recipes[recipe.LlamaCpp]
		cfg.LlamaServer, err = engine.Finder{Dirs: s.EnginesDir}.Find(&llamacpp, llamacpp.Backend(p.options, 0))
	}
	if err != nil {
		cfg.NoServer = err.Error()
	}
	return cfg
}

// mainMemory returns the machine's total and available memory in bytes, 0 if unknown.
func mainMemory() (total, free int64) {
	m, err := mem.VirtualMemory()
	if err != nil {
		return 0, 0
	}
	return int64(m.Total), int64(m.Available)
}
