package recipe

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"time"

	"reveille/infra/oom"
	"reveille/infra/policy"
)

// Defaults for a recipe that sets no times.
const (
	DefaultLoadTimeout  = 300 * time.Second
	DefaultStallTimeout = 60 * time.Second
	DefaultStopGrace    = 10 * time.Second
)

// Shipped recipes that Go code treats specially, always by [Recipe.Family].
const (
	LlamaCpp   = "llamacpp"
	WhisperCpp = "whispercpp"
	SDCpp      = "sd-cpp"
	VLLM       = "vllm"
	TEI        = "tei"
	Upstream   = "upstream"
	Standin    = "standin" // of tests; plays llama-server
)

// A Recipe says how to run one kind of engine. The zero value of a field means "not set": [Merge] keeps the base's
// value, and the methods use the documented default.
//
// A complete recipe survives JSON if [Recipe.Validate] is called after reading it, which restores the kinds of number.
type Recipe struct {
	// Name is the recipe's name in models.yaml and in the API. [Set.With] and [Parse] set it.
	Name string `json:"name" yaml:"-"`
	// Inherit names the recipe that this one starts from; empty for an independent recipe.
	Inherit string `json:"inherit,omitempty"`
	// Root is the recipe at the root of the inheritance; empty for an independent recipe. [Set.With] sets it; read it
	// through [Recipe.Family].
	Root string `json:"root,omitempty" yaml:"-"`
	// Command is the program and its arguments; the first argument of the first group is the program.
	Command []Group `json:"command,omitempty"`
	// Env is added to the engine's environment. Values may hold placeholders; a variable whose placeholder has no value
	// is left out.
	Env map[string]string `json:"env,omitempty"`
	// Devices is what a model uses if neither the model nor a backend says otherwise. If it is empty, every model must
	// name its devices.
	Devices policy.Devices `json:"devices,omitempty"`
	// BackendOption is the option that selects one of Backends ("llamacpp_backend"); empty if there is no choice.
	BackendOption string `json:"backend_option,omitempty"`
	// Backends maps a backend's name to the devices it uses and the flags that select it.
	Backends map[string]Backend `json:"backends,omitempty"`
	// Types are the types of model that the engine can serve.
	Types List[policy.Type] `json:"types,omitempty"`
	// TypeFlags are the arguments added for each type of model ({type_flags}).
	TypeFlags map[policy.Type]List[string] `json:"type_flags,omitempty"`
	// HealthPath is the HTTP path polled while loading. It starts with a slash.
	HealthPath string `json:"health_path,omitempty"`
	// Ready says when a load is complete.
	Ready Ready `json:"ready,omitzero"`
	// Listen says where the engine accepts requests: [ListenPort] (default) or [ListenSocket].
	Listen string `json:"listen,omitempty"`
	// Checkpoint says what {model} must be on the host: [CheckpointFile] (default), [CheckpointPath], or
	// [CheckpointAny] for engines with their own model names.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Options are the load options the engine takes, by name.
	Options map[string]OptionSpec `json:"options,omitempty"`
	// Registration says whether models registered through the API may name this recipe: [RegistrationAllow] or
	// [RegistrationDeny]. If it is empty, a recipe with its own command denies it.
	Registration string `json:"registration,omitempty"`
	// Errors recognizes causes of failure in log lines.
	Errors ErrorPatterns `json:"errors,omitzero"`
	// Redact matches what a serving engine's log lines quote from requests, see [Redactor].
	Redact List[*regexp.Regexp] `json:"redact,omitempty"`
	// LogLine matches every log line that the engine itself starts; other lines continue a quote. See [Redactor].
	LogLine *regexp.Regexp `json:"log_line,omitempty"`
	// LoadTimeout bounds a whole load, StallTimeout any period of it without health or log progress, StopGrace the time
	// between SIGTERM and SIGKILL. Read them through [Recipe.Times].
	LoadTimeout  time.Duration `json:"load_timeout,omitempty"`
	StallTimeout time.Duration `json:"stall_timeout,omitempty"`
	StopGrace    time.Duration `json:"stop_grace,omitempty"`
	// EncoderCache says how to cache the engine's media encoder: [EncoderInterpose], or [EncoderNone], the default.
	EncoderCache string `json:"encoder_cache,omitempty"`
	// Connections says whether the engine's server handles several requests on one connection well: [ConnectionsKept],
	// or [ConnectionsSingle], the default.
	Connections string `json:"connections,omitempty"`
	// Fields are top-level fields of a request's body that are passed to this engine, in addition to those passed to
	// every engine.
	Fields []string `json:"fields,omitempty"`
	// OmitModel leaves `model` out of requests: the engine knows its model by its path alone and refuses every other
	// name.
	OmitModel bool `json:"omit_model,omitempty"`
	// Sandbox lists what the engine needs beyond what every engine gets.
	Sandbox Sandbox `json:"sandbox,omitzero"`
	// ProcessMiB is the memory, in MiB, that the engine's process takes of the model's device besides the model and its
	// buffers: interpreters, libraries, the driver's context.
	ProcessMiB int64 `json:"process_mib,omitempty"`
	// GPUs says how the engine uses several GPUs. The zero value: as it likes, all that it sees.
	GPUs GPUs `json:"gpus,omitzero"`
}

// Sandbox lists what an engine needs in addition to the model's files, its own program and libraries, the system's
// libraries, GPU and NPU devices, a private temporary folder and the port it listens on. Paths are absolute or start
// with "~/"; those missing on a machine are skipped.
type Sandbox struct {
	// Files is [SandboxOwn] (default), or [SandboxOpen] for all files that its user may access.
	Files string `json:"files,omitempty"`
	// Network is [SandboxOwn] (default) for only the port, or [SandboxOpen].
	Network string `json:"network,omitempty"`
	// Read, Write and Exec are additional files and folders. Those of Exec may be read, and programs in them run.
	Read  []string `json:"read,omitempty"`
	Write []string `json:"write,omitempty"`
	Exec  []string `json:"exec,omitempty"`
	// Pids bounds its processes and threads; 0 means the runner's default.
	Pids int `json:"pids,omitempty"`
}

// Values of [Sandbox.Files] and [Sandbox.Network].
const (
	SandboxOwn  = "own"
	SandboxOpen = "open"
)

// Values of [GPUs.Split].
const (
	SplitNone = "none" // the engine uses one GPU
	SplitFree = "free" // by the free memory of each
	SplitEven = "even" // the same on each
)

// Values of [Recipe.Listen].
const (
	ListenPort   = "port"
	ListenSocket = "socket"
)

// Values of [Recipe.Registration].
const (
	RegistrationAllow = "allow"
	RegistrationDeny  = "deny"
)

// Values of [Recipe.Checkpoint].
const (
	CheckpointFile = "file" // a regular file
	CheckpointPath = "path" // a file or a folder
	CheckpointAny  = "any"  // a path, a registry id or a tag; not checked before the spawn
)

// Values of [Recipe.EncoderCache].
const (
	EncoderInterpose = "interpose" // libmtmd exports the encoder as dynamic symbols, which a preloaded library can interpose
	EncoderNone      = "none"      // every image or sound is encoded again
)

// Values of [Recipe.Connections].
const (
	// ConnectionsSingle gives each request its own connection. Servers built on cpp-httplib (llama-server,
	// whisper-server, sd-server) bind a thread to each connection. Connections beyond their threads wait as long as the
	// others are kept, and the server may close a connection after a stream without announcing it.
	ConnectionsSingle = "single"
	ConnectionsKept   = "kept" // HTTP/1.1 as usual
)

// A Group is a list of arguments that are kept or left out together.
type Group = List[string]

// A Backend is one way an engine can compute.
type Backend struct {
	Devices policy.Devices `json:"devices"`
	Flags   List[string]   `json:"flags,omitempty"` // {backend_flags}
	// Env is added to the engine's environment after the recipe's own. Its values may hold placeholders.
	Env map[string]string `json:"env,omitempty"`
}

// Ready says when a load is complete. If Log is set, a matching log line decides, whatever the health path returns.
// Otherwise the health path must return Status (default 200).
type Ready struct {
	Status int            `json:"status,omitempty"`
	Log    *regexp.Regexp `json:"log,omitempty"`
}

// ErrorPatterns match causes of failure in an engine's log. OutOfMemory adds to the patterns of package oom. Refused
// match what only an engine says that does not accept its arguments or the kind of its model: no room helps such a
// load.
type ErrorPatterns struct {
	FileNotFound List[*regexp.Regexp] `json:"file_not_found,omitempty"`
	OutOfMemory  List[*regexp.Regexp] `json:"out_of_memory,omitempty"`
	Unsupported  List[*regexp.Regexp] `json:"unsupported,omitempty"`
	Refused      List[*regexp.Regexp] `json:"refused,omitempty"`
}

// A Cause is a reason for a failed load that an engine's log names.
type Cause string

// Causes.
const (
	CauseUnknown      Cause = ""
	CauseFileNotFound Cause = "file not found"
	CauseOutOfMemory  Cause = "out of memory"
	CauseUnsupported  Cause = "unsupported"
	CauseRefused      Cause = "refused"
)

// Cause returns the cause of failure that a log line names, or [CauseUnknown] for an ordinary line. It checks for out
// of memory first, since engines that run out of memory often end with a general "failed to load" line.
func (p ErrorPatterns) Cause(line string) Cause {
	match := func(list []*regexp.Regexp) bool {
		return slices.ContainsFunc(list, func(re *regexp.Regexp) bool { return re.MatchString(line) })
	}
	switch {
	case oom.IsOutOfMemory(line), match(p.OutOfMemory):
		return CauseOutOfMemory
	case match(p.FileNotFound):
		return CauseFileNotFound
	case match(p.Refused):
		return CauseRefused
	case match(p.Unsupported):
		return CauseUnsupported
	}
	return CauseUnknown
}

// MediaMarker stands for a picture in an embedding input. llama-server would otherwise pick a random marker at each
// start, so that no message contains it by chance; embedding servers take no messages.
const MediaMarker = "<__media__>"

// Family names the kind of engine: the recipe at the root of the inheritance, for most recipes the recipe itself. What
// the code knows about an engine's flags and responses depends on its family.
func (r *Recipe) Family() string { return cmp.Or(r.Root, r.Name) }

// Program returns the name or path of the engine's program, or "" for a recipe without a command.
func (r *Recipe) Program() string {
	if len(r.Command) == 0 || len(r.Command[0]) == 0 {
		return ""
	}
	return r.Command[0][0]
}

// Serves reports whether the engine can serve models of type t.
func (r *Recipe) Serves(t policy.Type) bool { return slices.Contains(r.Types, t) }

// Backend returns the name of the backend that opts select. If they select none, it returns the name of the model's own
// devices ("cpu", "npu") if a backend of that name uses exactly those, otherwise "".
func (r *Recipe) Backend(opts Options, model policy.Devices) string {
	if r.BackendOption == "" {
		return ""
	}
	if name, ok := opts[r.BackendOption].(string); ok && name != "" {
		return name
	}
	if b, ok := r.Backends[model.String()]; ok && b.Devices == model {
		return model.String()
	}
	return ""
}

// DevicesFor returns the devices that a model uses: those of the backend selected by opts, else the model's own, else
// the recipe's.
func (r *Recipe) DevicesFor(opts Options, model policy.Devices) policy.Devices {
	if name, ok := opts[r.BackendOption].(string); ok && r.BackendOption != "" {
		if b, ok := r.Backends[name]; ok {
			return b.Devices
		}
	}
	if model != 0 {
		return model
	}
	return r.Devices
}

// Allowed returns the devices that models may use. An engine for another than the NPU may have been built for the CPU
// or a GPU.
func (r *Recipe) Allowed() policy.Devices {
	all := r.Devices
	for _, b := range r.Backends {
		all |= b.Devices
	}
	switch all {
	case 0:
		return policy.CPU | policy.GPU | policy.NPU
	case policy.NPU:
		return all
	}
	return all | policy.CPU | policy.GPU
}

// Times returns the three bounds with defaults filled in.
func (r *Recipe) Times() (load, stall, stop time.Duration) {
	return cmp.Or(max(r.LoadTimeout, 0), DefaultLoadTimeout), cmp.Or(max(r.StallTimeout, 0), DefaultStallTimeout),
		cmp.Or(max(r.StopGrace, 0), DefaultStopGrace)
}

// ownFlag matches a flag, but no negative number.
var ownFlag = regexp.MustCompile(`^--?[A-Za-z][-\w]*$`)

// Flags returns all flags that the recipe can pass to the engine, extra arguments apart, in the order of their names.
func (r *Recipe) Flags() []string {
	args := slices.Concat(r.Command...)
	for _, list := range r.TypeFlags {
		args = append(args, list...)
	}
	for _, b := range r.Backends {
		args = append(args, b.Flags...)
	}
	for _, o := range r.Options {
		args = append(args, o.Flag)
	}
	args = slices.DeleteFunc(args, func(a string) bool { return !ownFlag.MatchString(a) })
	slices.Sort(args)
	return slices.Compact(args)
}

// NeedsFile reports whether a model's weights must be a file or folder on the host: the engine gets their path and has
// no names of its own for them.
func (r *Recipe) NeedsFile() bool {
	return r.Checkpoint != CheckpointAny && (r.Uses("model") || r.Uses("llm_model"))
}

// Uses reports whether a placeholder occurs in the command or in the environment.
func (r *Recipe) Uses(placeholder string) bool {
	in := func(s string) bool { return slices.Contains(placeholders(s), placeholder) }
	for _, g := range r.Command {
		if slices.ContainsFunc(g, in) {
			return true
		}
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(r.Env)), in)
}

// Registrable reports whether models registered through the API may name the recipe.
func (r *Recipe) Registrable() bool { return r.Registration == RegistrationAllow }
