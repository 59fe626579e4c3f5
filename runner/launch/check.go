package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	var meta plan.Meta
	if r.NeedsFile() {
		meta, err = l.plans.Read(f.checkpoint)
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
		switch projector, err := l.plans.Read(f.mmproj); {
		case err == nil:
			return refused(f.mmproj, "contains a model, not a projector")
		case projector.Hidden > 0 && meta.Hidden > 0 && projector.Hidden != meta.Hidden:
			return refused(f.mmproj, fmt.Sprintf("is for models of dimension %d, and the model's is %d", projector.Hidden, meta.Hidden))
		}
	}
	for name, spec := range r.Options {
		text, _ := opts[name].(string)
		args, err := recipe.SplitArgs(text)
		if spec.Kind != recipe.KindArgs || err != nil || len(args) == 0 {
			continue
		}
		if err := l.flagsOf(ctx, program).check(args, plan.OptionsOf(r, m.Type, m.Devices, 0, opts).CacheV); err != nil {
			return err
		}
	}
	return nil
}

// flags are those that a llama-server knows, each with what its help writes for the value, "" for a flag without one.
type flags map[string]string

// flagLine is how its help begins with a flag: "-t,    --threads N      number of CPU threads".
var flagLine = regexp.MustCompile(`(?m)^(--?[A-Za-z][\w-]*(?:, +--?[A-Za-z][\w-]*)*)(?: (\S+))?`)

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
				out[strings.TrimSpace(name)] = string(m[2])
			}
		}
		if err != nil || out["--ctx-size"] == "" {
			return nil, err
		}
		return out, nil
	})
	return known
}

// notNumber matches what no flag takes for a number.
var notNumber = regexp.MustCompile(`^-*[A-Za-z]`)

// numberWords are the words that flags take instead of a number.
var numberWords = []string{"auto", "all", "inf", "-inf", "nan"}

// check finds what the engine refuses of args before it reads the model, given the type of its V cache. It leaves what
// it cannot judge to the engine.
func (f flags) check(args []string, cacheV string) error {
	refused := func(why string) error { return &engine.LoadError{Kind: engine.ErrRefused, Detail: why} }
	noFlashAttention := false
	for i := 0; i < len(args) && f != nil; i++ {
		name, value, joined := strings.Cut(args[i], "=")
		if !flagLine.MatchString(name) { // a value, such as -1
			continue
		}
		if strings.HasPrefix(name, "--") {
			name = strings.ReplaceAll(name, "_", "-") // as the engine does
		}
		kind, known := f[name]
		switch {
		case !known:
			return refused(engine.UnknownArgument(name))
		case kind == "":
			continue
		case !joined && i+1 == len(args):
			return refused("its argument " + name + " has no value")
		case !joined:
			i++
			value = args[i]
		}
		switch name {
		case "-fa", "--flash-attn":
			noFlashAttention = slices.Contains([]string{"off", "false", "disabled", "0"}, value)
		case "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "-md", "--model-draft", "--spec-draft-model":
			if file := missingFile(value); file != "" {
				return &engine.LoadError{Kind: engine.ErrFileNotFound, Detail: filepath.Base(file) + " of the argument " + name}
			}
		}
		if kind == "N" && notNumber.MatchString(value) && !slices.Contains(numberWords, value) {
			return refused("its argument " + name + " takes a number")
		}
	}
	if noFlashAttention && !slices.Contains([]string{"", "f32", "f16", "bf16"}, cacheV) {
		return refused("a quantized cache_type_v needs flash attention")
	}
	return nil
}

// scale is what follows a file in a list of scaled ones.
var scale = regexp.MustCompile(`:[-+.\d]+$`)

// missingFile returns the first file of a flag's value that does not exist, "" for none. The value is a file or a list
// of files, which may be scaled. Relative paths begin where the engine runs, and are left to it.
func missingFile(value string) string {
	if _, err := os.Stat(value); err == nil { // its name may contain a comma
		return ""
	}
	for file := range strings.SplitSeq(value, ",") {
		file = scale.ReplaceAllString(file, "")
		if _, err := os.Stat(file); filepath.IsAbs(file) && errors.Is(err, fs.ErrNotExist) {
			return file
		}
	}
	return ""
}
