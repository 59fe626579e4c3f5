package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/devices"
	"reveille/runner/engine"
	"reveille/runner/plan"
)

// Check finds what keeps a model from ever starting on this host. Its errors are those of [Launcher.Start].
func (l *Launcher) Check(ctx context.Context, m *catalog.Model, r *recipe.Recipe, opts recipe.Options) error {
	f, err := l.hold(ctx, m)
	if err != nil {
		return err
	}
	defer f.release()
	program, err := l.Finder.Find(r, r.Backend(opts, m.Devices))
	if err != nil {
		return err
	}
	if err := engine.CheckFiles(engine.Spec{Recipe: *r, Checkpoint: f.checkpoint, MMProj: f.mmproj}, &l.files); err != nil {
		return err
	}
	refused := func(file, why string) error {
		return &engine.LoadError{Kind: engine.ErrRefused, Detail: filepath.Base(file) + " " + why}
	}
	isLlamaCpp := r.Family() == recipe.LlamaCpp
	if r.NeedsFile() {
		meta, err := l.plans.Read(f.checkpoint)
		switch {
		case errors.Is(err, plan.ErrProjector):
			return refused(f.checkpoint, err.Error())
		case err == nil && isLlamaCpp && m.Type == policy.LLM && !meta.Causal && meta.Pooling != 0:
			return refused(f.checkpoint, "generates no text: set type to embedding or reranking")
		}
	}
	if !isLlamaCpp {
		return nil
	}
	if f.mmproj != "" {
		if _, err := l.plans.Read(f.mmproj); err == nil {
			return refused(f.mmproj, "contains a model, not a projector")
		}
	}
	for name, spec := range r.Options {
		text, _ := opts[name].(string)
		args, err := recipe.SplitArgs(text)
		if spec.Kind != recipe.KindArgs || err != nil || len(args) == 0 {
			continue
		}
		if unknown := l.flagsOf(ctx, program).unknown(args); unknown != "" {
			return &engine.LoadError{Kind: engine.ErrRefused, Detail: engine.UnknownArgument(unknown)}
		}
	}
	return nil
}

// flags are those that a llama-server knows, and whether a value follows.
type flags map[string]bool

// flagLine is how its help begins with a flag: "-t,    --threads N      number of CPU threads".
var flagLine = regexp.MustCompile(`(?m)^(--?[A-Za-z][\w-]*(?:, +--?[A-Za-z][\w-]*)*)( \S)?`)

// flagsOf asks a program for its flags. They are none where its help is not llama-server's.
func (l *Launcher) flagsOf(ctx context.Context, program string) flags {
	info, err := os.Stat(program)
	if err != nil {
		return nil
	}
	known, _ := l.help.Read(program, info, func(program string) (flags, error) {
		query := devices.Command{Env: func(program string) []string { return engine.QueryEnviron(program, os.Environ()) }}
		text, err := query.Run(ctx, program, "--help")
		out := flags{}
		for _, m := range flagLine.FindAllSubmatch(text, -1) {
			for name := range strings.SplitSeq(string(m[1]), ",") {
				out[strings.TrimSpace(name)] = len(m[2]) > 0
			}
		}
		if err != nil || !out["--ctx-size"] {
			return nil, err
		}
		return out, nil
	})
	return known
}

// unknown returns the first of args that is no flag and cannot be the value of one, "" for none.
func (f flags) unknown(args []string) string {
	for i := 0; i < len(args) && f != nil; i++ {
		name, _, joined := strings.Cut(args[i], "=")
		if !flagLine.MatchString(name) { // a value, such as -1
			continue
		}
		if strings.HasPrefix(name, "--") {
			name = strings.ReplaceAll(name, "_", "-") // as the engine does
		}
		value, known := f[name]
		if !known {
			return name
		}
		if value && !joined {
			i++
		}
	}
	return ""
}
