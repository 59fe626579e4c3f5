package setup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/term"
	"reveille/runner/app"
	"reveille/runner/launch"
	"reveille/runner/plan"
)

// A Machine is what models may use of this machine.
type Machine struct {
	Devices string // as devices.Found writes them
	Kinds   policy.Devices
	Budget  map[policy.Devices]int64 // bytes per kind of device; no entry: unknown
}

// Look finds this machine's devices. It may run llama-server and nvidia-smi, for a bounded time.
func Look(ctx context.Context, enginesDir []string) Machine {
	h := app.Detect(ctx, enginesDir)
	return Machine{Devices: h.Found.String(), Kinds: h.Devices, Budget: h.Budget}
}

// Fit is how a model would be loaded if it were alone on the machine.
type Fit struct {
	Devices policy.Devices
	Plan    plan.Plan
	Budget  int64 // bytes of its smallest device, 0 if unknown
}

// Fits reports whether the model's estimate is within the budget. Both must be known.
func (f Fit) Fits() bool { return f.Plan.Need <= f.Budget }

// Known reports whether estimate and budget are known.
func (f Fit) Known() bool { return f.Plan.Need > 0 && f.Budget > 0 }

// Context is the planned context in tokens, 0 for a model that has none of its own.
func (f Fit) Context() int {
	if f.Plan.Kind == plan.Paged {
		return f.Plan.Context
	}
	return 0
}

// Fit plans a model for this machine, from the headers of its files. The model's recipe is r.
func (m Machine) Fit(model *catalog.Model, r *recipe.Recipe) (Fit, error) {
	load, err := placement.Resolve(model, r, placement.Sources{})
	if err != nil {
		return Fit{}, err
	}
	f := Fit{Devices: load.Model.Devices}
	for d, n := range m.Budget {
		if f.Devices.Overlaps(d) && (f.Budget == 0 || n < f.Budget) {
			f.Budget = n
		}
	}
	f.Plan, err = (&launch.Launcher{}).Plan(load.Model, r, load.Options, plan.ShareOf(f.Budget, 1, 0, 0))
	return f, err
}

// place chooses the device of a model that was found: the GPU if it has one that holds the model, else the processor.
func (m Machine) place(found Model) Fit {
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	try := func(d policy.Devices) Fit {
		f, _ := m.Fit(&catalog.Model{ID: found.Name, Type: found.Type, Recipe: recipe.LlamaCpp, Checkpoint: found.Path, MMProj: found.MMProj, Devices: d}, &llamacpp)
		return f
	}
	cpu := try(policy.CPU)
	if !m.Kinds.Has(policy.GPU) {
		return cpu
	}
	if gpu := try(policy.GPU); !gpu.Known() || gpu.Fits() || !cpu.Known() || !cpu.Fits() {
		return gpu
	}
	return cpu
}

const head = `# yaml-language-server: $schema=%s
#
# Models of this machine, found by gateway init. Edits apply live; unchanged models keep running.
# gateway check FILE says what is wrong with the file, and with --fit what fits into memory.
#
# Devices: %s
`

// Write writes a models file with the scan's models, each with what it needs. schema is where the file's JSON Schema
// is. The file is valid; an error is of w, or of a check that failed.
func (s *Scan) Write(w io.Writer, m Machine, schema string) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, head, schema, comment(m.Devices))
	if len(s.Models) == 0 {
		out.WriteString("#\n# No GGUF files were found. A model looks like this:\n#\n#   qwen3-4b:\n#     checkpoint: /models/qwen3-4b-q4_k_m.gguf # or hf://org/repo/file.gguf\n#     device: gpu\nmodels: {}\n")
	} else {
		out.WriteString("models:\n")
	}
	defaults := ""
	seen := map[policy.Type]bool{}
	for _, found := range s.Models {
		f := m.place(found)
		fmt.Fprintf(&out, "  %s:\n    # %s\n", scalar(found.Name), comment(f.describe(found)))
		fmt.Fprintf(&out, "    type: %s\n    recipe: %s\n    checkpoint: %s\n", found.Type, recipe.LlamaCpp, scalar(found.Path))
		if found.MMProj != "" {
			fmt.Fprintf(&out, "    mmproj: %s # it takes images or audio\n", scalar(found.MMProj))
		}
		fmt.Fprintf(&out, "    device: %s\n", f.Devices)
		if !seen[found.Type] {
			seen[found.Type] = true
			defaults += fmt.Sprintf("#     %s: %s\n", found.Type, scalar(found.Name))
		}
	}
	if defaults != "" {
		fmt.Fprintf(&out, "\n# Models for requests that name none, and how long a model stays without requests:\n#\n# defaults:\n#   idle: 20m\n#   models:\n%s", defaults)
	}
	out.WriteString("\nhosts:\n  local: {driver: local} # this machine; others sleep and wake by wol, ec2, asg, kubernetes or exec\n")
	if len(s.Skipped) > 0 {
		out.WriteString("\n# Left out:\n")
		for _, text := range s.Skipped[:min(len(s.Skipped), 50)] {
			fmt.Fprintf(&out, "#   %s\n", comment(text))
		}
		if more := len(s.Skipped) - 50; more > 0 {
			fmt.Fprintf(&out, "#   and %d more\n", more)
		}
	}
	if _, _, err := catalog.Parse("models.yaml", out.Bytes()); err != nil {
		return fmt.Errorf("the file would not be valid: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// describe says what a model is and needs.
func (f Fit) describe(m Model) string {
	text := fmt.Sprintf("%s, %s of weights", m.Meta.Arch, catalog.FormatSize(m.Meta.Weights))
	if m.Meta.Positions > 0 {
		text += fmt.Sprintf(", trained for %d tokens", m.Meta.Positions)
	}
	if f.Known() && !f.Fits() {
		text += fmt.Sprintf("; too much for %s of %s", catalog.FormatSize(f.Budget), f.Devices)
	}
	return text
}

// comment makes text safe for one line of a comment.
func comment(text string) string { return term.Line(text, 400) }

// scalar writes text of one line as a YAML string.
func scalar(text string) string {
	out, _ := yaml.Marshal(text) // a string always marshals
	return strings.TrimSpace(string(out))
}
