package engine

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// A Spec is the complete description of an engine to run. It is a value: its functions read no file and no environment.
type Spec struct {
	Recipe  recipe.Recipe
	Program string // path of the program; the name in the recipe if empty
	Model   string // the name that the engine uses for the model
	// Checkpoint and MMProj are paths on this host, or what Recipe.Checkpoint allows instead.
	Checkpoint, MMProj string
	Type               policy.Type
	Devices            policy.Devices // the devices set in the model's entry; 0 if none
	Options            recipe.Options // the effective ones
	// The engine listens on Host and Port, or, if the recipe says so, on the unix socket at path Socket.
	Host   string
	Port   int
	Socket string
	APIKey string // passed to the engine if the recipe has a placeholder for it
	GPUs   GPUs
	// SaveSlots lets the engine save the state of conversations in its private folder, see [Process.Dir].
	SaveSlots bool
	// ReportsBuffers says that the log of the load reports buffers. The load is complete when it has.
	ReportsBuffers bool
	dir            string            // the private folder, filled in by Start
	Env            map[string]string // added to the environment last, for example for the encoder cache
}

// GPUs are the GPUs that an engine must use; the zero value does not restrict it.
type GPUs struct {
	Count int               // how many, 0 for any
	Names string            // llama-server's names for them, separated by commas; "" if Env selects them, or no GPU is left out
	Env   map[string]string // variables that hide all others; nil if Names selects them, or no GPU is left out
}

func (s *Spec) onSocket() bool { return s.Recipe.Listen == recipe.ListenSocket }

func (s *Spec) backend() recipe.Backend {
	return s.Recipe.Backends[s.Recipe.Backend(s.Options, s.Devices)]
}

// values returns the values of the recipe's placeholders.
func (s *Spec) values() (recipe.Values, error) {
	options, err := s.Recipe.OptionArgs(s.Options)
	if err != nil {
		return nil, err
	}
	v := s.Recipe.OptionValues(s.Options)
	maps.Copy(v, recipe.Values{
		"model":         {s.Checkpoint},
		"mmproj":        {s.MMProj},
		"alias":         {s.Model},
		"type":          {string(s.Type)},
		"host":          {s.Host},
		"port":          {strconv.Itoa(s.Port)},
		"socket":        {s.Socket},
		"api_key":       {s.APIKey},
		"type_flags":    s.Recipe.TypeFlags[s.Type],
		"backend_flags": s.backend().Flags,
		"options":       options,
		"dir":           {s.dir},
	})
	if s.SaveSlots {
		v["slots"] = []string{s.dir}
	}
	if s.GPUs.Count > 1 {
		v["gpu_count"] = []string{strconv.Itoa(s.GPUs.Count)}
	}
	first, _, _ := strings.Cut(s.GPUs.Names, ",")
	v["gpu_names"], v["gpu_name"] = []string{s.GPUs.Names}, []string{first}
	switch s.Type {
	case policy.LLM:
		v["llm_model"] = []string{s.Checkpoint}
	case policy.Embedding:
		v["media_marker"] = []string{recipe.MediaMarker}
	}
	if s.onSocket() { // engines accept a socket in place of the host
		v["host"], v["port"] = []string{s.Socket}, nil
	}
	return v, nil
}

// Argv returns the argument vector, the program first. It checks everything in it again: it fails for a type that the
// recipe does not serve, for options that the recipe refuses, for a name or path that the engine could take for a flag,
// and for strings that cannot be arguments.
func Argv(s Spec) ([]string, error) {
	if !s.Recipe.Serves(s.Type) {
		return nil, fmt.Errorf("recipe %s does not serve models of type %q", s.Recipe.Name, s.Type)
	}
	if _, err := s.Recipe.ParseOptions(s.Options, recipe.Operator); err != nil {
		return nil, err
	}
	for _, text := range []string{s.Checkpoint, s.MMProj, s.Model, s.Host, s.Socket} {
		if strings.HasPrefix(text, "-") {
			return nil, fmt.Errorf("recipe %s: %.40q starts with a hyphen, so the engine would take it for a flag", s.Recipe.Name, text)
		}
	}
	v, err := s.values()
	if err != nil {
		return nil, err
	}
	argv, err := recipe.Expand(s.Recipe.Command, v)
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", s.Recipe.Name, err)
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("recipe %s has no command", s.Recipe.Name)
	}
	if s.Program != "" {
		argv[0] = s.Program
	}
	if slices.ContainsFunc(argv, func(a string) bool { return strings.ContainsRune(a, 0) }) {
		return nil, fmt.Errorf("recipe %s: an argument contains a NUL character", s.Recipe.Name)
	}
	return argv, nil
}

// inheritedVars are the variables of the runner's environment that engines get, to find programs, libraries and
// devices. Engines get no other variable, because the environment contains the runner's secrets.
var inheritedVars = []string{
	"PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME",
	"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "FLM_MODEL_PATH", "RYZENAI_INSTALL_PATH", "XILINX_XRT",
	"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
	"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ROCM_PATH",
	"GGML_VK_VISIBLE_DEVICES", "VK_ICD_FILENAMES", "VK_DRIVER_FILES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
}

// clusterVars are further ones that recipe upstream gets, to find the cluster whose workload it scales.
var clusterVars = []string{"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}

// Environ returns the engine's environment as sorted NAME=value strings. Later sources override earlier ones: the
// allowed part of base (the runner's environment), the recipe's variables, those that select GPUs, and those of the
// Spec.
func Environ(s Spec, base []string) ([]string, error) {
	v, err := s.values()
	if err != nil {
		return nil, err
	}
	env := inherited(base, inheritedVars)
	if s.Recipe.Family() == recipe.Upstream {
		maps.Copy(env, inherited(base, clusterVars))
	}
	vars := map[string]string{}
	maps.Copy(vars, s.Recipe.Env)
	maps.Copy(vars, s.backend().Env)
	for name, text := range vars {
		val, ok, err := recipe.ExpandString(text, v)
		if err != nil {
			return nil, fmt.Errorf("recipe %s: env %s: %w", s.Recipe.Name, name, err)
		}
		if ok {
			env[name] = val
		}
	}
	maps.Copy(env, s.GPUs.Env)
	maps.Copy(env, s.Env)
	return sorted(env), nil
}

// QueryEnviron returns the environment, as sorted NAME=value strings, of a program that reports on this machine: the
// part of base that engines get, and the folder of the program's libraries.
func QueryEnviron(program string, base []string) []string {
	return withLibraryPath(sorted(inherited(base, inheritedVars)), program)
}

// inherited returns the variables of base that have one of the names.
func inherited(base, names []string) map[string]string {
	env := map[string]string{}
	for _, kv := range base {
		if name, val, ok := strings.Cut(kv, "="); ok && slices.Contains(names, name) {
			env[name] = val
		}
	}
	return env
}

func sorted(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// BaseURL returns the root of the engine's HTTP interface, without a trailing slash. For an engine on a socket the host
// is a placeholder: the connection is made to Socket.
func (s Spec) BaseURL() string {
	if s.onSocket() {
		return "http://engine.sock"
	}
	return "http://" + net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
}

// HealthURL returns the URL that is polled during a load, "" for an engine whose log shows when it is ready.
func (s Spec) HealthURL() string {
	if s.Recipe.HealthPath == "" || s.Recipe.Ready.Log != nil {
		return ""
	}
	return s.BaseURL() + s.Recipe.HealthPath
}
