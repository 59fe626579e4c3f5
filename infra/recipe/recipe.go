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

// Defaults of a recipe that names no times of its own.
const (
	DefaultLoadTimeout  = 300 * time.Second
	DefaultStallTimeout = 60 * time.Second
	DefaultStopGrace    = 10 * time.Second
)

// Shipped recipes that Go code treats specially, always by [Recipe.Family].
const (
	LlamaCpp = "llamacpp"
	VLLM     = "vllm"
	TEI      = "tei"
)

// A Recipe tells how to run one kind of engine. The zero value of a field means "not said": [Merge] leaves the base's
// value in place, and the methods fall back to the documented default.
//
// Fields that YAML writes in other ways than JSON stand in [form].
//
// A complete recipe survives JSON, if [Recipe.Validate] is called on what was read: it restores the kinds of number.
type Recipe struct {
	// Name is the recipe's name in models.yaml and in the API. It is set by [Set.With] and by [Parse].
	Name string `json:"name" yaml:"-"`
	// Inherit names the recipe whose fields this one starts from; empty for a recipe of its own.
	Inherit string `json:"inherit,omitempty"`
	// Root is the recipe at which the inheritance begins, empty for a recipe of its own. It is set by [Set.With]; read it
	// through [Recipe.Family].
	Root string `json:"root,omitempty" yaml:"-"`
	// Command is the program and its arguments; the first argument of the first group is the program.
	Command []Group `json:"command,omitempty" yaml:"-"`
	// Env is added to the child's environment; values may hold placeholders, and a variable whose placeholder has no
	// value is left out.
	Env map[string]string `json:"env,omitempty"`
	// Devices is what a model uses when neither the model nor a backend says otherwise; empty only for a recipe whose
	// models must say it themselves.
	Devices policy.Devices `json:"devices,omitempty" yaml:"-"`
	// BackendOption is the option that selects one of Backends ("llamacpp_backend"); empty when there is no choice.
	BackendOption string `json:"backend_option,omitempty"`
	// Backends maps a backend's name to the devices it uses and the flags that select it.
	Backends map[string]Backend `json:"backends,omitempty" yaml:"-"`
	// Types are the classes of model the engine can serve.
	Types []policy.Type `json:"types,omitempty" yaml:"-"`
	// TypeFlags are the arguments added for a model of a type ({type_flags}).
	TypeFlags map[policy.Type][]string `json:"type_flags,omitempty" yaml:"-"`
	// HealthPath is the HTTP path polled while loading. It begins with a slash.
	HealthPath string `json:"health_path,omitempty"`
	// Ready says when a load is complete.
	Ready Ready `json:"ready,omitzero" yaml:"-"`
	// Listen is where the engine accepts requests: [ListenPort] (default) or [ListenSocket].
	Listen string `json:"listen,omitempty"`
	// Checkpoint is what {model} must be on the host: [CheckpointFile] (default), [CheckpointPath], or
	// [CheckpointAny] for engines that take names of their own.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Options are the load options the engine takes, by name.
	Options map[string]OptionSpec `json:"options,omitempty"`
	// ReservedArgs are flags that no option of kind args may hold, whoever sets it, since the runner sets them itself.
	ReservedArgs []string `json:"reserved_args,omitempty" yaml:"-"`
	// AllowedArgs are the only flags that options of kind args may hold when they come from [Outside]. The key lists the
	// spellings of a flag, divided by spaces; the value says what may follow it: a number in a range, one of a list of
	// words, or, for [KindBool], nothing. A recipe that gives the field replaces the whole map of the one it inherits from.
	AllowedArgs map[string]OptionSpec `json:"allowed_args,omitempty"`
	// Registration says whether models registered through the API may name this recipe: [RegistrationAllow] or
	// [RegistrationDeny]. Empty denies it to a recipe with a command of its own.
	Registration string `json:"registration,omitempty"`
	// Abbreviations says that the engine completes abbreviated long flags, so that those of reserved ones are reserved
	// as well. It cannot be unset by an override.
	Abbreviations bool `json:"abbreviations,omitempty"`
	// Errors recognises causes of failure in log lines.
	Errors ErrorPatterns `json:"errors,omitzero" yaml:"-"`
	// Redact matches what a serving engine's log lines quote of requests, see [Redactor].
	Redact []*regexp.Regexp `json:"redact,omitempty" yaml:"-"`
	// LogLine matches every log line that the engine itself begins; other lines go on with what it quotes. See [Redactor].
	LogLine *regexp.Regexp `json:"log_line,omitempty" yaml:"-"`
	// LoadTimeout bounds a whole load, StallTimeout the part of it without health or log progress, StopGrace the time
	// between SIGTERM and SIGKILL. Read them through [Recipe.Times].
	LoadTimeout  time.Duration `json:"load_timeout,omitempty"`
	StallTimeout time.Duration `json:"stall_timeout,omitempty"`
	StopGrace    time.Duration `json:"stop_grace,omitempty"`
	// EncoderCache names the way the engine's media encoder is cached: [EncoderInterpose], or [EncoderNone], which empty
	// means as well.
	EncoderCache string `json:"encoder_cache,omitempty"`
	// Connections says whether the engine's server is good at serving several requests on one connection:
	// [ConnectionsKept], or [ConnectionsSingle], which empty means as well.
	Connections string `json:"connections,omitempty"`
	// Fields are top-level fields of a request's body that pass to the engine besides those that pass to every engine.
	Fields []string `json:"fields,omitempty"`
	// Sandbox says what the engine needs that engines do not get otherwise.
	Sandbox Sandbox `json:"sandbox,omitzero"`
}

// Sandbox says what an engine needs besides the model's files, its own program and libraries, the system's, GPU and NPU
// devices, a private temporary folder and the port it listens on. Paths are absolute or begin with "~/"; those that a
// machine lacks are left out.
type Sandbox struct {
	// Files is [SandboxOwn], or [SandboxOpen] for all files that its user may use. Empty means SandboxOwn.
	Files string `json:"files,omitempty" yaml:"files"`
	// Network is [SandboxOwn] for the port alone, or [SandboxOpen]. Empty means SandboxOwn.
	Network string `json:"network,omitempty" yaml:"network"`
	// Read and Write are further files and folders.
	Read  []string `json:"read,omitempty" yaml:"read"`
	Write []string `json:"write,omitempty" yaml:"write"`
	// Pids is the most processes and threads; 0 is the runner's default.
	Pids int `json:"pids,omitempty" yaml:"pids"`
}

// Values of [Sandbox.Files] and [Sandbox.Network].
const (
	SandboxOwn  = "own"
	SandboxOpen = "open"
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
	EncoderInterpose = "interpose" // the engine reaches its encoder through dynamic symbols of libmtmd, which a preloaded library can interpose
	EncoderNone      = "none"      // every medium is encoded
)

// Values of [Recipe.Connections].
const (
	// ConnectionsSingle gives each request a connection of its own. A server that binds a thread to a connection, as those
	// built on cpp-httplib do (llama-server, whisper-server, sd-server), lets the connections beyond its threads wait for
	// as long as the others are kept, and may close one behind a stream without saying so.
	ConnectionsSingle = "single"
	ConnectionsKept   = "kept" // HTTP/1.1 as usual
)

// A Group is a run of arguments that are kept or left out together.
type Group []string

// A Backend is one way an engine can compute.
type Backend struct {
	Devices policy.Devices `json:"devices"`
	Flags   []string       `json:"flags,omitempty"` // {backend_flags}
	// Env is added to the child's environment after the recipe's own; its values may hold placeholders as well.
	Env map[string]string `json:"env,omitempty"`
}

// Ready says when a load is complete: when the health path answers Status (default 200), or, where Log is set, when a
// line of the log matches it, whatever the health path says.
type Ready struct {
	Status int            `json:"status,omitempty"`
	Log    *regexp.Regexp `json:"log,omitempty"`
}

// ErrorPatterns recognise causes of failure in lines of an engine's log. OutOfMemory adds to the words that package oom knows.
type ErrorPatterns struct {
	FileNotFound []*regexp.Regexp `json:"file_not_found,omitempty"`
	OutOfMemory  []*regexp.Regexp `json:"out_of_memory,omitempty"`
	Unsupported  []*regexp.Regexp `json:"unsupported,omitempty"`
}

// A Cause is a reason for a failed load that an engine's log names.
type Cause string

// The causes.
const (
	CauseUnknown      Cause = ""
	CauseFileNotFound Cause = "file not found"
	CauseOutOfMemory  Cause = "out of memory"
	CauseUnsupported  Cause = "unsupported"
)

// Cause returns what a log line gives as the cause of failure, [CauseUnknown] for an ordinary line. Out of memory is
// looked for first: engines that run out of memory often end with a general "failed to load" line.
func (p ErrorPatterns) Cause(line string) Cause {
	match := func(list []*regexp.Regexp) bool {
		return slices.ContainsFunc(list, func(re *regexp.Regexp) bool { return re.MatchString(line) })
	}
	switch {
	case oom.Says(line), match(p.OutOfMemory):
		return CauseOutOfMemory
	case match(p.FileNotFound):
		return CauseFileNotFound
	case match(p.Unsupported):
		return CauseUnsupported
	}
	return CauseUnknown
}

// MediaMarker stands for a picture in the text of an input to embed. llama-server would make up one of its own at each start,
// so that the text of a message does not hold it by chance; embedding servers take no messages.
const MediaMarker = "<__media__>"

// Family names the kind of engine: the recipe at the root of the inheritance, for most recipes the recipe itself. What is
// known of an engine's flags and answers is known by family.
func (r *Recipe) Family() string { return cmp.Or(r.Root, r.Name) }

// Program is the name or path of the engine's program, "" for a recipe without a command.
func (r *Recipe) Program() string {
	if len(r.Command) == 0 || len(r.Command[0]) == 0 {
		return ""
	}
	return r.Command[0][0]
}

// Serves reports whether the engine can serve models of type t.
func (r *Recipe) Serves(t policy.Type) bool { return slices.Contains(r.Types, t) }

// Backend returns the name of the backend that opts select. When they select none and the model's own devices are
// exactly those of the backend of that name ("cpu", "npu"), it is that one; else "".
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

// DevicesFor returns the devices a model uses: those of the backend that opts select, else the model's own, else the
// recipe's.
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

// Times returns the three bounds with defaults filled in.
func (r *Recipe) Times() (load, stall, stop time.Duration) {
	pick := func(d, def time.Duration) time.Duration {
		if d <= 0 {
			return def
		}
		return d
	}
	return pick(r.LoadTimeout, DefaultLoadTimeout), pick(r.StallTimeout, DefaultStallTimeout), pick(r.StopGrace, DefaultStopGrace)
}

// UsesKey reports whether the engine is given an API key, in its command or in its environment.
func (r *Recipe) UsesKey() bool { return r.uses("api_key") }

// NeedsFile reports whether a model's weights must be a file or folder of the host: the engine is told where they lie, and
// has no names of its own for them.
func (r *Recipe) NeedsFile() bool {
	return r.Checkpoint != CheckpointAny && (r.uses("model") || r.uses("llm_model"))
}

// uses reports whether a placeholder occurs in the command or in the environment.
func (r *Recipe) uses(placeholder string) bool {
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
