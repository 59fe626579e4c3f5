package app

import (
	"cmp"
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
	config.Intake
	HostSettings
	InstanceSettings
	Evict        string  `help:"Which idle model makes room where several could: lru, or cost (reload seconds x price of the host, over the time unused)." enum:"lru,cost" default:"lru"`
	Price        float64 `help:"Price of an hour of this host, for --evict cost; 0 counts as 1." default:"0"`
	RunnerSecret string  `help:"Secret shared by the pool's gateways and runners."`
	Traces       string  `help:"OpenTelemetry collector that gets the spans of requests whose gateway traces them, by OTLP over HTTP, such as http://127.0.0.1:4318."`
	SleepCommand string  `help:"Command, started without a shell, that turns this machine off once the pool has put its host to sleep, such as \"systemctl suspend\"; for hosts of the driver wol."`
}

// HostSettings are the flags that describe the host; gateway run has them too.
type HostSettings struct {
	Host            string        `help:"Name of this host in the pool; default the machine's name, or with gateway run all local hosts of the models file."`
	RunnerAddr      string        `help:"Address that gateways reach this runner at; port 0 takes a free one." default:"127.0.0.1:8090"`
	Devices         string        `help:"Devices of this host: cpu, gpu, npu; default those that llama-server, nvidia-smi or the system's files tell of."`
	Labels          string        `help:"Labels that a model's hosts list may name, with commas."`
	MaxLoadedModels string        `help:"Models loaded at once: one number for every type, or a quoted list in the order llm embedding reranking audio image tts (filled with 1); -1 is no limit." default:"1"`
	MemoryBudget    string        `help:"Memory for models per device, such as \"cpu=24GiB gpu=20GiB\", or of single GPUs, \"gpu:0=20GiB\"; default 80 % of the machine's for cpu, 90 % of what is found for gpu, none for npu; a gpu that uses the machine's memory takes its part out of the 80 %."`
	MemoryMargin    string        `help:"Free memory of each device that a load leaves to other programs. Free memory is read before each load, and what others took is not given to models; off does not read it." default:"512MiB"`
	NPUSeats        string        `help:"NPU models at once per type, such as \"llm=1 audio=1\"; default one NPU model in all."`
	CtxSize         int           `help:"Context of llamacpp models in tokens, -1 automatic; 0 leaves it to the recipe."`
	LlamacppArgs    string        `help:"More arguments for llama-server."`
	LlamacppBackend string        `help:"Backend of llama-server: cpu, vulkan, cuda, rocm or metal."`
	NBatch          int           `short:"b" help:"Packing capacity of one batch in tokens; 0 leaves it to the recipe."`
	NUbatch         int           `help:"Largest single sequence in tokens; 0 leaves it to the recipe."`
	NParallel       int           `help:"Sequences that an engine computes at once; 0 leaves it to the recipe."`
	BatchDelay      time.Duration `help:"How long an embedding request may wait for company while the engine is idle, in whole milliseconds up to 1s; 0 leaves it to the recipe."`
	MMCacheBytes    string        `help:"Encoder outputs of images and sounds kept in this process; 0 keeps none (Redis still does)." default:"256MiB"`
	MMLookupWait    time.Duration `help:"How long an engine waits for a look-up of encoder outputs, besides 4 ms a MiB of media and up to 32 ms a MiB of outputs, where encoding takes as long; then it runs its encoder." default:"50ms"`
	MMTTL           time.Duration `env:"MM_TTL" help:"How long encoder outputs stay in Redis." default:"24h"`
	MMQuota         string        `help:"Encoder outputs in Redis, of all hosts and models together; 0 is no limit." default:"1GiB"`
	MMMaxEntry      string        `help:"Largest encoder output of one image or sound that is kept." default:"64MiB"`
	Weights
	ConversationsBytes string `help:"Most bytes on disk of what llama-server computed for conversations, kept over unloads; the oldest go first. 0 keeps none; default a tenth of the space that they and the free disk have at the start."`

	Recipes       string        `help:"File whose recipes: section adds to the shipped recipes, as the models file's does on the gateway; a runner takes command lines from no other place."`
	EnginesDir    []string      `help:"Folders with engine programs, looked into before this program's own and PATH."`
	Sandbox       string        `help:"How engines are confined: auto (as far as this machine can), strict (no engine starts where a measure is missing), or off." enum:"auto,strict,off" default:"auto"`
	EngineUser    string        `help:"User of engines where the runner is root: an account, UID, or UID:GID; default reveille-engine if there is one, else UID 60978, for engines whose files it can read."`
	EngineMemory  string        `help:"Most memory that one engine may use, where the runner may make control groups. Default: 90 % of the machine's."`
	StateDir      string        `help:"Folder for what must outlive the runner: its list of engine processes, the fencing token, saved conversations." default:".reveille"`
	FairAfter     time.Duration `help:"A model that may have several copies gets another while more requests wait for a copy than it serves in this time; and on a host, how long a busy model that must make room still takes new requests." default:"2s"`
	FirstByte     time.Duration `help:"How long an engine may take for the first byte of a streamed answer to a short prompt; long prompts and answers in one piece may take up to five times that. Then the request fails, and an engine that does not answer a probe of one token either is ended. A llama-server with requests is ended when its main loop stands still for twice this, or five times this with a projector." default:"120s"`
	DrainTimeout  time.Duration `help:"How long open requests of an unloading model may go on before they are cut." default:"30s"`
	RetireTimeout time.Duration `help:"How long open requests may go on after the entry of their model in the models file changed. New requests get the new entry: beside the old copy, or after it where there is no room for both." default:"1h"`
}

// parsed are the settings of a host, checked.
type parsed struct {
	name    string
	devices policy.Devices // 0: detected
	margin  int64          // negative: free memory is not read
	labels  []string
	limits  policy.Limits
	budget  map[policy.Devices]int64 // over the default
	cards   policy.GPUMemory         // the same, of single GPUs
	seats   map[policy.Type]int
	options recipe.Options

	conversations int64 // bytes of conversations, 0 the default, -1 none

	engineMemory int64 // most bytes of an engine, 0 if the machine's memory is unknown

	// In the terms of mmcache.Config: 0 is the default, -1 none or no limit.
	mediaBytes, mediaQuota, mediaEntry int64

	ring *logring.Ring // of the log

	// From Settings, beyond those of the host.
	secret []byte
	sleep  []string // command that turns this machine off, nil for none
	intake config.Limits
	tracer *trace.Tracer // nil: no traces
}

// recipes returns the shipped recipes and those of the file.
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

// Check reports all mistakes in the flags in one go.
func (s HostSettings) Check() error {
	_, err := s.parse()
	return err
}

// parse checks the flags; all mistakes are reported in one go.
func (s HostSettings) parse() (parsed, error) {
	var p parsed
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	_, err := s.recipes()
	note(err)
	if p.name = s.Host; p.name == "" {
		p.name, err = os.Hostname()
		note(err)
	}
	if !catalog.ValidHostName(p.name) {
		note(fmt.Errorf("--host %q: want at most 64 letters, digits and . _ -, the first a letter or digit", p.name))
	}
	note(dialable(s.RunnerAddr))
	if p.devices, err = policy.ParseDevices(s.Devices); err != nil {
		note(fmt.Errorf("--devices: %w", err))
	}
	for _, label := range strings.FieldsFunc(s.Labels, func(r rune) bool { return r == ' ' || r == ',' }) {
		if !catalog.ValidHostName(label) {
			note(fmt.Errorf("--labels: %q: want at most 64 letters, digits and . _ -, the first a letter or digit", label))
		}
		p.labels = append(p.labels, label)
	}
	if p.limits, err = policy.ParseLimits(s.MaxLoadedModels); err != nil {
		note(fmt.Errorf("--max-loaded-models: %w", err))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"fair-after", s.FairAfter}, {"drain-timeout", s.DrainTimeout}, {"retire-timeout", s.RetireTimeout}} {
		if d.value <= 0 {
			note(fmt.Errorf("--%s %v: want a duration above 0, such as 2s", d.flag, d.value))
		}
	}
	if s.FirstByte < 0 {
		note(fmt.Errorf("--first-byte %v: want a duration above 0, such as 120s", s.FirstByte))
	}
	if s.MMLookupWait < 0 || s.MMLookupWait > mmcache.MaxLookupWait {
		note(fmt.Errorf("--mm-lookup-wait %v: want at most %v", s.MMLookupWait, mmcache.MaxLookupWait))
	}
	if s.BatchDelay%time.Millisecond != 0 {
		note(fmt.Errorf("--batch-delay %v: want whole milliseconds", s.BatchDelay))
	}
	if s.MMTTL != 0 && s.MMTTL < time.Minute {
		note(fmt.Errorf("--mm-ttl %v: want at least 1m", s.MMTTL))
	}
	p.mediaBytes, err = byteLimit("mm-cache-bytes", s.MMCacheBytes)
	note(err)
	p.mediaQuota, err = byteLimit("mm-quota", s.MMQuota)
	note(err)
	p.mediaEntry, err = byteLimit("mm-max-entry", s.MMMaxEntry)
	note(err)
	if p.mediaEntry < 0 || p.mediaEntry > mmcache.MaxEntryLimit {
		note(fmt.Errorf("--mm-max-entry %s: want more than 0 and at most 1GiB; mm_cache: none keeps a model uncached", s.MMMaxEntry))
	}
	_, _, err = s.Weights.parse()
	note(err)
	p.conversations, err = byteLimit("conversations-bytes", s.ConversationsBytes)
	note(err)
	p.engineMemory, err = engineMemory(s.EngineMemory)
	note(err)
	p.budget, p.cards, err = budget(s.MemoryBudget)
	note(err)
	p.margin, err = margin(s.MemoryMargin)
	note(err)
	p.seats, err = seats(s.NPUSeats)
	note(err)
	if p.options, err = s.options(); err != nil {
		note(fmt.Errorf("load options of the runner: %w", err))
	}
	return p, errors.Join(errs...)
}

// options returns the load options given as flags, checked by the recipe that takes them.
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

// mediaBytes parses a flag into a value of mmcache.Config, where 0 is the default and -1 none.
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

// dialable refuses an address that gateways could not reach: the runner registers the address that it listens on.
func dialable(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--runner-addr %q: want HOST:PORT", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("--runner-addr %q: gateways are told this address, so name one of this host instead of all", addr)
	}
	return nil
}

// budget reads "cpu=24GiB gpu=20GiB", or with single GPUs "cpu=24GiB gpu:0=20GiB". Of both for GPUs, the last one counts.
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
