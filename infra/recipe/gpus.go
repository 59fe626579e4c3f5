package recipe

import (
	"slices"
	"strings"

	"reveille/infra/policy"
)

// GPUs says how an engine that can be restricted to some GPUs uses them. It is told by CUDA_VISIBLE_DEVICES and
// HIP_VISIBLE_DEVICES; a command with the placeholder {gpu_names} also by the names that llama-server gives them.
type GPUs struct {
	// Split is how the engine lays a model over several GPUs: [SplitNone], [SplitFree] or [SplitEven]. Empty: the
	// engine cannot be restricted.
	Split string `json:"split,omitempty"`
	// OwnArgs are the flags with which extra arguments choose GPUs themselves; such a load is not restricted.
	OwnArgs []string `json:"own_args,omitempty"`
}

// Variables that show an engine some of the GPUs.
var visibleVars = []string{"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"}

// visibleAPIs are the APIs (see devices.Device.API) of those that the runner sets.
var visibleAPIs = []string{"cuda", "rocm"}

// restricts reports whether an engine with options in force can be restricted to some of a host's GPUs by an API of the
// host's runner. It cannot if its backend is another one, or if its owner chooses GPUs by the recipe or by arguments.
func (r *Recipe) restricts(api string, opts Options) bool {
	if r.GPUs.Split == "" || api == "" || !slices.Contains(visibleAPIs, api) && !r.Uses("gpu_names") {
		return false
	}
	backend, _ := opts[r.BackendOption].(string)
	if backend != "" && backend != api {
		return false
	}
	for _, name := range visibleVars {
		if r.Env[name] != "" || r.Backends[backend].Env[name] != "" {
			return false
		}
	}
	args, err := r.ExtraArgs(opts)
	return err == nil && !slices.ContainsFunc(args, r.choosesGPUs)
}

// choosesGPUs reports whether an argument is one of OwnArgs, as --flag or --flag=value, perhaps with underscores for
// hyphens.
func (r *Recipe) choosesGPUs(arg string) bool {
	flag, _, _ := strings.Cut(arg, "=")
	return slices.Contains(r.GPUs.OwnArgs, flag) || slices.Contains(r.GPUs.OwnArgs, strings.ReplaceAll(flag, "_", "-"))
}

// ConstrainGPUs is which GPUs of a host a model with options in force may use: wanted, the model's own choice, where the
// engine can be restricted, else all of them together, which is the zero value.
func (r *Recipe) ConstrainGPUs(wanted policy.GPUConstraint, api string, opts Options) policy.GPUConstraint {
	if !r.restricts(api, opts) {
		return policy.GPUConstraint{}
	}
	if wanted.Max <= 0 {
		wanted.Max = policy.MaxGPUs
	}
	if r.GPUs.Split == SplitNone {
		wanted.Max = 1
	}
	wanted.Even = r.GPUs.Split == SplitEven
	return wanted
}
