package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	if err := engine.CheckFiles(engine.Spec{Recipe: *r, Checkpoint: f.checkpoint, MMProj: f.mmproj}, &l.checker); err != nil {
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
	args, err := r.ExtraArgs(opts)
	if err != nil || len(args) == 0 {
		return nil // Start reports the error
	}
	if err := checkArguments(ctx, program, args); err != nil {
		return err
	}
	files, noFlashAttention := weightArguments(args)
	if noFlashAttention && !slices.Contains([]string{"", "f32", "f16", "bf16"}, plan.OptionsOf(r, m.Type, m.Devices, 0, opts).CacheV) {
		return &engine.LoadError{Kind: engine.ErrRefused, Detail: "a quantized cache_type_v needs flash attention"}
	}
	for file, isAdapter := range files {
		if err := engine.CheckFiles(engine.Spec{Recipe: *r, Checkpoint: file}, &l.checker); err != nil {
			return err
		}
		if !isAdapter {
			continue
		}
		if _, err := l.plans.Read(file); err == nil {
			return refused(file, "contains a model, not an adapter")
		}
	}
	return nil
}

// refusal matches what llama-server writes about an argument that it does not know, or whose value it does not take.
var refusal = regexp.MustCompile(`(?m)^error(?:: invalid argument: ([^\s=]+)| while handling argument "([^"]+)")`)

// checkArguments returns llama-server's objection to the arguments. With --help it parses them without loading a model.
func checkArguments(ctx context.Context, program string, args []string) error {
	_, err := help(ctx, program, args...)
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return nil
	}
	switch m := refusal.FindSubmatch(exit.Stderr); {
	case m == nil:
		return nil // another program, or a wrapper
	case len(m[1]) > 0:
		return &engine.LoadError{Kind: engine.ErrRefused, Detail: engine.UnknownArgument(string(m[1]))}
	default:
		return &engine.LoadError{Kind: engine.ErrRefused, Detail: "the engine does not accept the value of argument " + string(m[2])}
	}
}

// help returns what a program prints with arguments and --help.
func help(ctx context.Context, program string, args ...string) ([]byte, error) {
	query := devices.Command{Env: func(program string) []string { return engine.QueryEnviron(program, os.Environ()) }}
	return query.Run(ctx, program, slices.Concat(args, []string{"--help"})...)
}

// traceLevel matches verbosity 4 in llama-server's help.
var traceLevel = regexp.MustCompile(`(?m)^\s*- 4: trace`)

// tracesBuffers reports whether a llama-server lists the buffers of a load at verbosity 4, and no requests. Builds
// without that level list buffers anyway, and log requests at 4.
func tracesBuffers(ctx context.Context, program string) bool {
	text, _ := help(ctx, program)
	return traceLevel.Match(text)
}

// scale matches the factor after a file, such as :0.5 in --lora-scaled FILE:0.5.
var scale = regexp.MustCompile(`:[-+.\d]+$`)

// weightArguments returns the weight files that arguments name (true: it must be an adapter), and whether the arguments
// turn flash attention off. Relative paths are skipped, because they are relative to the engine's folder.
func weightArguments(args []string) (files map[string]bool, noFlashAttention bool) {
	files = map[string]bool{}
	for i, name := range args[:max(0, len(args)-1)] {
		switch value := args[i+1]; strings.ReplaceAll(name, "_", "-") {
		case "-fa", "--flash-attn":
			noFlashAttention = slices.Contains([]string{"off", "false", "disabled", "0"}, value)
		case "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "-md", "--model-draft", "--spec-draft-model":
			list := []string{value}
			if _, err := os.Stat(value); err != nil { // no single file has this name: it is a list
				list = strings.Split(value, ",")
			}
			for _, file := range list {
				if file = scale.ReplaceAllString(file, ""); filepath.IsAbs(file) {
					files[file] = strings.HasPrefix(name, "--lora")
				}
			}
		}
	}
	return files, noFlashAttention
}
