package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/trace"
	"reveille/runner/mmcache"
	"reveille/runner/plan"
)

// Settings are a runner's settings, filled in by config.Parse.
type Settings struct {
	config.Redis
	config.Log
	config.ClientLimits
	HostSettings
	InstanceSettings
	Evict        string  `help:"How to choose the idle model to evict: lru, or cost (reload seconds x price of the host, divided by the time unused)." enum:"lru,cost" default:"lru"`
	Price        float64 `help:"Price of an hour of this host, for --evict cost; 0 counts as 1." default:"0"`
	RunnerSecret string  `help:"Secret shared by the pool's gateways and runners."`
	RunnerTLS    string  `help:"Gateways reach this runner with TLS: on, off, or auto, unless --runner-addr is a loopback address." enum:"auto,on,off" default:"auto"`
	Traces       string  `help:"OpenTelemetry collector for the spans of requests that gateways trace, OTLP over HTTP, such as http://127.0.0.1:4318."`
	SleepCommand string  `help:"Command that turns this machine off when the pool puts its host to sleep, such as \"systemctl suspend\"; run without a shell; for hosts of the driver wol."`
	AwakeWhile   string  `help:"This machine is not put to sleep while this command exits with 0. auto: while a login session is active, a program inhibits sleep, or a GPU is busy. Default: auto with --sleep-command, else off."`
}

// HostSettings are the flags that describe the host. `gateway run` has them as well.
type HostSettings struct {
	Host            string        `help:"Name of this host in the pool; default the machine's name, or with gateway run all local hosts of the models file."`
	RunnerAddr      string        `help:"Address at which gateways reach this runner; port 0 selects a free one." default:"127.0.0.1:8090"`
	Devices         string        `help:"Devices of this host: cpu, gpu, npu. Detected with llama-server, nvidia-smi or sysfs by default."`
	Labels          string        `help:"Labels that a model's hosts list can name, separated by commas."`
	MaxLoadedModels string        `help:"Maximum number of loaded models: one number for every type, or a quoted list in the order llm embedding reranking audio image tts (filled with 1); -1 is no limit." default:"1"`
	MemoryBudget    string        `help:"Memory for models on each device, such as \"cpu=24GiB gpu=20GiB\", or on single GPUs, \"gpu:0=20GiB\". Default: 80 % of the machine's memory for cpu, 90 % of the detected memory for gpu, no limit for npu. The budget of a gpu that uses the machine's memory is part of the 80 %."`
	MemoryMargin    string        `help:"Free memory of each device that a load leaves to other programs. Free memory is read before each load, and memory that other programs use is not given to models; off does not read it." default:"512MiB"`
	NPUSeats        string        `help:"Maximum number of loaded NPU models by type, such as \"llm=1 audio=1\"; default one NPU model in all."`
	CtxSize         int           `help:"Context of llamacpp models in tokens, -1 automatic; 0 leaves it to the recipe."`
	LlamacppArgs    string        `help:"Additional arguments for llama-server."`
	LlamacppBackend string        `help:"Backend of llama-server: cpu, vulkan, cuda, rocm or metal."`
	NBatch          int           `short:"b" help:"Packing capacity of one batch in tokens; 0 leaves it to the recipe."`
	NUbatch         int           `help:"Largest single sequence in tokens; 0 leaves it to the recipe."`
	NParallel       int           `help:"Sequences that an engine computes in parallel; 0 leaves it to the recipe."`
	BatchDelay      time.Duration `help:"Maximum time that an embedding request waits for others to join its batch while the engine is idle, in whole milliseconds up to 1s; 0 leaves it to the recipe."`
	MMCacheBytes    string        `help:"Memory of this process for encoder outputs of images and audio; 0 keeps none (Redis still does)." default:"256MiB"`
	MMLookupWait    time.Duration `help:"How long an engine waits for a look-up of encoder outputs before it runs its encoder, plus 4 ms for each MiB of media and up to 32 ms for each MiB of outputs." default:"50ms"`
	MMTTL           time.Duration `env:"MM_TTL" help:"How long encoder outputs stay in Redis." default:"24h"`
	MMQuota         string        `help:"Maximum size of the encoder outputs in Redis, of all hosts and models together; 0 is no limit." default:"1GiB"`
	MMMaxEntry      string        `help:"Maximum size of the encoder output of one image or audio clip; larger ones are not cached." default:"64MiB"`
	Weights
	ConversationsBytes string `help:"Maximum disk space for llama-server's saved conversations; those quick to compute and long unused are removed first. 0 saves none; default a tenth of the space that they and the free disk have at startup."`

	Recipes       string        `help:"File whose recipes: section is added to the built-in recipes, as that of the models file is on the gateway. A runner accepts command lines from no other source."`
	EnginesDir    []string      `help:"Folders with engine programs, searched before the folder of this program and PATH."`
	Sandbox       string        `help:"Sandbox of engines: auto (as far as this machine supports it), strict (no engine starts if a measure is missing), or off." enum:"auto,strict,off" default:"auto"`
	EngineUser    string        `help:"User that runs the engines if the runner is root: an account, UID, or UID:GID; default reveille-engine if it exists, else UID 60978, for engines whose files that user can read."`
	EngineMemory  string        `help:"Memory limit of one engine, if the runner can create control groups. Default: 90 % of the machine's memory."`
	StateDir      string        `help:"Folder for state that outlives the runner: the mark of its engine processes, the fencing token, saved conversations." default:".reveille"`
	FairAfter     time.Duration `help:"On a host: how long a busy model that must make room still takes new requests. In the pool: a model that can have several copies gets further ones while more requests wait for a copy than it serves in this time." default:"2s"`
	FirstByte     time.Duration `help:"Timeout for the first byte of a streamed response to a short prompt; up to five times that for long prompts and for responses that are not streamed. After it the request fails, and an engine that does not respond to a probe of one token either is killed. A llama-server with requests is killed when its main loop is stuck for twice this time, or five times with a projector." default:"120s"`
	DrainTimeout  time.Duration `help:"How long open requests of a model being unloaded can run before they are cut." default:"30s"`
	RetireTimeout time.Duration `help:"How long open requests can run after their model's entry in the models file has changed. New requests use the new entry, in a second copy, or after the old one has ended if there is no room for both." default:"1h"`
}

// parsed are the checked settings of a host.
type parsed struct {
	name    string
	machine string         // id of the machine, if the host is a slot of a group that it has claimed
	devices policy.Devices // 0: detected
	margin  int64          // negative: free memory is not read
	labels  []string
	limits  policy.Limits
	budget  map[policy.Devices]int64 // overrides the default
	cards   policy.GPUMemory         // the same for single GPUs
	seats   map[policy.Type]int
	options recipe.Options

	conversations int64 // bytes of conversations, 0 the default, -1 none

	engineMemory int64 // memory limit of an engine, 0 if the machine's memory is unknown

	// In the terms of mmcache.Config: 0 is the default, -1 none or no limit.
	mediaBytes, mediaQuota, mediaEntry int64

	ring *logring.Ring // of the log

	// From Settings.
	secret       []byte
	sleep        []string // command that turns this machine off, nil for none
	inUse        func(context.Context) string
	clientLimits config.Limits
	tracer       *trace.Tracer // nil: no traces
}

// recipes returns the built-in recipes and those of the file.
func (s HostSettings) recipes() (recipe.Set, error) {
	if s.Recipes == "" {
		return recipe.Shipped(), nil
	}
	c, _, err := catalog.Load(s.Recipes)
	if err != nil {
		return nil, fmt.Errorf("--recipes: %w", err)
	}
	return c.Recipes, nil
}

// Check reports all mistakes in the flags together.
func (s HostSettings) Check() error {
	_, err := s.parse()
	return err
}

// parse checks the flags and reports all mistakes together.
func (s HostSettings) parse() (parsed, error) {
	var p parsed
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	_, err := s.recipes()
	add(err)
	if p.name = s.Host; p.name == "" {
		p.name, err = os.Hostname()
		add(err)
	}
	if !catalog.ValidHostName(p.name) {
		add(fmt.Errorf("--host %q: want at most 64 letters, digits and . _ -, the first a letter or digit", p.name))
	}
	add(checkRunnerAddr(s.RunnerAddr))
	if p.devices, err = policy.ParseDevices(s.Devices); err != nil {
		add(fmt.Errorf("--devices: %w", err))
	}
	for _, label := range strings.FieldsFunc(s.Labels, func(r rune) bool { return r == ' ' || r == ',' }) {
		if !catalog.ValidHostName(label) {
			add(fmt.Errorf("--labels: %q: want at most 64 letters, digits and . _ -, the first a letter or digit", label))
		}
		p.labels = append(p.labels, label)
	}
	if p.limits, err = policy.ParseLimits(s.MaxLoadedModels); err != nil {
		add(fmt.Errorf("--max-loaded-models: %w", err))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"fair-after", s.FairAfter}, {"drain-timeout", s.DrainTimeout}, {"retire-timeout", s.RetireTimeout}} {
		if d.value <= 0 {
			add(fmt.Errorf("--%s %v: want a duration above 0, such as 2s", d.flag, d.value))
		}
	}
	if s.FirstByte < 0 {
		add(fmt.Errorf("--first-byte %v: want a duration above 0, such as 120s", s.FirstByte))
	}
	if s.MMLookupWait < 0 || s.MMLookupWait > mmcache.MaxLookupWait {
		add(fmt.Errorf("--mm-lookup-wait %v: want at most %v", s.MMLookupWait, mmcache.MaxLookupWait))
	}
	if s.BatchDelay%time.Millisecond != 0 {
		add(fmt.Errorf("--batch-delay %v: want whole milliseconds", s.BatchDelay))
	}
	if s.MMTTL != 0 && s.MMTTL < time.Minute {
		add(fmt.Errorf("--mm-ttl %v: want at least 1m", s.MMTTL))
	}
	p.mediaBytes, err = byteLimit("mm-cache-bytes", s.MMCacheBytes)
	add(err)
	p.mediaQuota, err = byteLimit("mm-quota", s.MMQuota)
	add(err)
	p.mediaEntry, err = byteLimit("mm-max-entry", s.MMMaxEntry)
	add(err)
	if p.mediaEntry < 0 || p.mediaEntry > mmcache.MaxEntryLimit {
		add(fmt.Errorf("--mm-max-entry %s: want more than 0 and at most 1GiB; to cache nothing of a model, set its mm_cache: none", s.MMMaxEntry))
	}
	_, _, err = s.Weights.parse()
	add(err)
	p.conversations, err = byteLimit("conversations-bytes", s.ConversationsBytes)
	add(err)
	p.engineMemory, err = engineMemory(s.EngineMemory)
	add(err)
	p.budget, p.cards, err = budget(s.MemoryBudget)
	add(err)
	p.margin, err = margin(s.MemoryMargin)
	add(err)
	p.seats, err = seats(s.NPUSeats)
	add(err)
	if p.options, err = s.options(); err != nil {
		add(fmt.Errorf("load options of the runner: %w", err))
	}
	return p, errors.Join(errs...)
}

// options returns the load options given as flags, checked against llamacpp's recipe.
func (s HostSettings) options() (recipe.Options, error) {
	raw := map[string]any{}
	for name, n := range map[string]int{
		"ctx_size": s.CtxSize, "n_batch": s.NBatch, "n_ubatch": s.NUbatch, "n_parallel": s.NParallel, "batch_delay": int(s.BatchDelay.Milliseconds()),
	} {
		if n != 0 {
			raw[name] = int64(n)
		}
	}
	if s.LlamacppArgs != "" {
		raw["llamacpp_args"] = s.LlamacppArgs
	}
	if s.LlamacppBackend != "" {
		raw["llamacpp_backend"] = s.LlamacppBackend
	}
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	parsed, err := llamacpp.ParseOptions(raw, recipe.Operator)
	if err != nil {
		return nil, err
	}
	return parsed, plan.OptionsOf(&llamacpp, policy.Embedding, 0, 0, parsed).Validate() // otherwise every embedding model would be refused
}

// byteLimit parses a flag into a limit in bytes, where 0 means the default and -1 none.
func byteLimit(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := catalog.ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	if n == 0 {
		return -1, nil
	}
	return n, nil
}

// margin reads --memory-margin.
func margin(text string) (int64, error) {
	if text == "off" {
		return -1, nil
	}
	n, err := catalog.ParseSize(cmp.Or(text, "0"))
	if err != nil {
		return 0, fmt.Errorf("--memory-margin: %w; want a size or off", err)
	}
	return n, nil
}

// checkRunnerAddr refuses an address that gateways could not reach: the runner registers the address on which it
// listens.
func checkRunnerAddr(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--runner-addr %q: want HOST:PORT", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("--runner-addr %q: gateways connect to this address; use one of this host's addresses", addr)
	}
	return nil
}

// budget reads "cpu=24GiB gpu=20GiB", or with single GPUs "cpu=24GiB gpu:0=20GiB". Of both for GPUs, the last one
// counts.
func budget(text string) (map[policy.Devices]int64, policy.GPUMemory, error) {
	out, cards := map[policy.Devices]int64{}, policy.GPUMemory{}
	for name, value := range pairs(text) {
		n, err := catalog.ParseSize(value)
		if err != nil || n <= 0 {
			return nil, nil, fmt.Errorf("--memory-budget %q: %q is not a size above 0, such as 20GiB", text, value)
		}
		if index, ok := strings.CutPrefix(name, "gpu:"); ok {
			if card, err := strconv.ParseUint(index, 10, 8); err == nil && card < policy.MaxGPUs {
				cards[int(card)] = n
				delete(out, policy.GPU)
				continue
			}
		}
		d, err := policy.ParseDevices(name)
		if err != nil || d != policy.CPU && d != policy.GPU && d != policy.NPU {
			return nil, nil, fmt.Errorf("--memory-budget %q: want DEVICE=SIZE for cpu, gpu, gpu:0 and so on, or npu, such as gpu=20GiB", text)
		}
		if out[d] = n; d == policy.GPU {
			clear(cards)
		}
	}
	return out, cards, nil
}

// seats reads "llm=1 audio=1"; nil for an empty text.
func seats(text string) (map[policy.Type]int, error) {
	var out map[policy.Type]int
	for name, value := range pairs(text) {
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || !policy.Type(name).Valid() {
			return nil, fmt.Errorf("--npu-seats %q: want TYPE=NUMBER, such as llm=1", text)
		}
		if out == nil {
			out = map[policy.Type]int{}
		}
		out[policy.Type(name)] = n
	}
	return out, nil
}

// pairs yields the parts of "a=1 b=2" (spaces or commas) in order.
func pairs(text string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, f := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }) {
			name, value, _ := strings.Cut(f, "=")
			if !yield(name, value) {
				return
			}
		}
	}
}
