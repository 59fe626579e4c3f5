package placement

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// Load is one way to load a model on one host: the model with the devices that its options select, and those options.
type Load struct {
	Model   *catalog.Model
	Options recipe.Options // the effective ones
}

// Sources are a load's options in addition to the catalog's. Strings are as in Redis.
type Sources struct {
	Saved   string            // JSON of the model's saved options, "" for none
	Runtime map[string]string // the pool's run-time settings
	Flags   recipe.Options    // from the runner's flags and environment
	Request string            // JSON of the options of an explicit load request, "" for none
}

// Resolve merges a model's options (load request > saved > catalog > run-time settings > flags > recipe) and sets its
// devices to those that the options select. Gateway, warmer and runner all use it, so that a model counts for the
// devices that its engine uses. The error reports options that are not a JSON object. m is not changed.
func Resolve(m *catalog.Model, rc *recipe.Recipe, from Sources) (Load, error) {
	saved, err := options(from.Saved)
	if err != nil {
		return Load{}, fmt.Errorf("saved options: %w", err)
	}
	request, err := options(from.Request)
	if err != nil {
		return Load{}, fmt.Errorf("options: %w", err)
	}
	opts := rc.Effective(recipe.Layers{
		Request: request, Saved: saved, Catalog: m.Options, Runner: runtimeOptions(from.Flags, from.Runtime, rc),
	})
	return Load{Model: WithDevices(m, rc, opts), Options: opts}, nil
}

// WithDevices returns the model with the devices that the effective options select.
func WithDevices(m *catalog.Model, rc *recipe.Recipe, opts recipe.Options) *catalog.Model {
	d := rc.DevicesFor(opts, m.Devices)
	if d == m.Devices {
		return m
	}
	changed := *m
	changed.Devices = d
	return &changed
}

// GPUs returns which of a host's GPUs the load may use. api is how the host's runner restricts engines to single GPUs,
// "" if it cannot.
func (l Load) GPUs(rc *recipe.Recipe, api string) policy.GPUConstraint {
	if !l.Model.Devices.Has(policy.GPU) {
		return policy.GPUConstraint{}
	}
	return rc.ConstrainGPUs(l.Model.GPUConstraint(), api, l.Options)
}

// Digest identifies what is loaded: it changes with the names of the files, the recipe, the options, the devices and
// the choice of GPUs.
func (l Load) Digest() string {
	m := l.Model
	parts := []string{m.ID, string(m.Type), m.Checkpoint, m.SHA256, m.MMProj, m.Recipe, m.Devices.String(), l.Options.Canonical()}
	if g := m.GPUConstraint(); g != (policy.GPUConstraint{}) {
		parts = append(parts, fmt.Sprint(g.Max, g.Only))
	}
	text, _ := json.Marshal(parts) // strings always marshal
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func options(text string) (recipe.Options, error) {
	if text == "" {
		return nil, nil
	}
	var o recipe.Options
	err := json.Unmarshal([]byte(text), &o)
	return o, err
}

// runtimeOptions returns the load options of flags and environment, overridden by the pool's run-time settings:
// ctx_size, and for each engine an object such as {"backend": "vulkan"}, which sets its option ENGINE_backend. It
// leaves out values that the recipe refuses.
func runtimeOptions(flags recipe.Options, table map[string]string, r *recipe.Recipe) recipe.Options {
	requested := map[string]any{}
	for name, text := range table {
		var n int64
		var by map[string]string
		switch {
		case name == "ctx_size" && json.Unmarshal([]byte(text), &n) == nil:
			requested[name] = n
		case name != "max_loaded_models" && json.Unmarshal([]byte(text), &by) == nil:
			for part, v := range by {
				requested[name+"_"+part] = v
			}
		}
	}
	out := flags.Clone()
	for name, v := range requested {
		one, err := r.ParseOptions(map[string]any{name: v}, recipe.Client)
		if err != nil || one[name] == "" {
			continue
		}
		if out == nil {
			out = recipe.Options{}
		}
		out[name] = one[name]
	}
	return out
}
