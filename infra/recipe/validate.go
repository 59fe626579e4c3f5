package recipe

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// fixedPlaceholders are the placeholders that do not come from options.
var fixedPlaceholders = []string{
	"model", "llm_model", "mmproj", "media_marker", "alias", "type", "host", "port", "socket", "api_key", "type_flags", "backend_flags", "options", "slots",
	"dir", "gpu_names", "gpu_name", "gpu_count",
}

var (
	nameRE    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	flagRE    = regexp.MustCompile(`^--?[A-Za-z0-9][A-Za-z0-9.-]*$`)
	envNameRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Validate reports all mistakes of a complete recipe together, and normalizes the defaults in Options.
func (r *Recipe) Validate() error {
	v := validator{r: r}
	v.names()
	v.command()
	v.ready()
	v.kinds()
	v.options()
	return errors.Join(v.errs...)
}

type validator struct {
	r    *Recipe
	errs []error
}

func (v *validator) fail(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("recipe %s: "+format, append([]any{v.r.Name}, args...)...))
}

func (v *validator) oneOf(field, got string, want ...string) {
	if got != "" && !slices.Contains(want, got) {
		v.fail("%s %q: want %s", field, got, strings.Join(want, " or "))
	}
}

var fieldRE = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

func (v *validator) names() {
	if !nameRE.MatchString(v.r.Name) {
		v.fail("a name is lower-case letters, digits, dots and hyphens, at most 64")
	}
	v.oneOf("listen", v.r.Listen, ListenPort, ListenSocket)
	v.oneOf("checkpoint", v.r.Checkpoint, CheckpointFile, CheckpointPath, CheckpointAny)
	v.oneOf("encoder_cache", v.r.EncoderCache, EncoderInterpose, EncoderNone)
	v.oneOf("registration", v.r.Registration, RegistrationAllow, RegistrationDeny)
	v.oneOf("connections", v.r.Connections, ConnectionsSingle, ConnectionsKept)
	for _, f := range v.r.Fields {
		if !fieldRE.MatchString(f) {
			v.fail("fields: %q is not a field name: want lower-case letters, digits and underscores, at most 64", f)
		}
	}
	v.oneOf("sandbox.files", v.r.Sandbox.Files, SandboxOwn, SandboxOpen)
	v.oneOf("sandbox.network", v.r.Sandbox.Network, SandboxOwn, SandboxOpen)
	v.oneOf("gpus.split", v.r.GPUs.Split, SplitNone, SplitFree, SplitEven)
	for _, flag := range v.r.GPUs.OwnArgs {
		if !flagRE.MatchString(flag) {
			v.fail("gpus.own_args: %q is not a flag", flag)
		}
	}
	for _, p := range slices.Concat(v.r.Sandbox.Read, v.r.Sandbox.Write, v.r.Sandbox.Exec) {
		if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~/") {
			v.fail("sandbox: %q: want a path that starts with / or ~/", p)
		}
	}
	if v.r.Sandbox.Pids < 0 {
		v.fail("sandbox.pids is negative")
	}
	if v.r.ProcessMiB < 0 || v.r.ProcessMiB > 1<<20 {
		v.fail("process_mib is not between 0 and 1048576")
	}
	if v.r.LoadTimeout < 0 || v.r.StallTimeout < 0 || v.r.StopGrace < 0 {
		v.fail("a time is negative")
	}
}

func (v *validator) command() {
	if v.r.Program() == "" {
		v.fail("command is missing")
	} else if len(placeholders(v.r.Program())) > 0 {
		v.fail("the program may not be a placeholder")
	}
	for _, g := range v.r.Command {
		for _, a := range g {
			v.placeholders("command", a)
		}
	}
	v.env(v.r.Env)
}

func (v *validator) env(vars map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if !envNameRE.MatchString(name) {
			v.fail("env %q is not a variable's name", name)
		}
		v.placeholders("env "+name, vars[name])
	}
}

func (v *validator) placeholders(where, s string) {
	for _, name := range placeholders(s) {
		_, isOption := v.r.Options[name]
		if !isOption && !slices.Contains(fixedPlaceholders, name) {
			v.fail("%s: unknown placeholder {%s}", where, name)
		}
	}
}

func (v *validator) ready() {
	r := v.r
	switch {
	case r.HealthPath == "" && r.Ready.Log == nil:
		v.fail("health_path or ready.log is needed")
	case r.HealthPath != "" && (r.HealthPath[0] != '/' || strings.ContainsAny(r.HealthPath, " \t\r\n#")):
		v.fail("health_path %q: want a path that starts with /", r.HealthPath)
	}
	if s := r.Ready.Status; s != 0 && (s < 200 || s > 499) {
		v.fail("ready.status %d: want 200 to 499", s)
	}
}

func (v *validator) kinds() {
	r := v.r
	if len(r.Types) == 0 {
		v.fail("types is missing")
	}
	for _, t := range r.Types {
		if !t.Valid() {
			v.fail("unknown type %q", t)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(r.TypeFlags)) {
		if !slices.Contains(r.Types, t) {
			v.fail("type_flags of %q, which is not among types", t)
		}
	}
	if (r.BackendOption == "") != (len(r.Backends) == 0) {
		v.fail("backend_option and backends need each other")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Backends)) {
		if r.Backends[name].Devices == 0 {
			v.fail("backend %s has no devices", name)
		}
		v.env(r.Backends[name].Env)
	}
	if spec, ok := r.Options[r.BackendOption]; r.BackendOption != "" && (!ok || spec.Kind != KindString) {
		v.fail("backend_option %s is not an option of kind string", r.BackendOption)
	}
}

func (v *validator) options() {
	r := v.r
	for _, name := range slices.Sorted(maps.Keys(r.Options)) {
		spec := r.Options[name]
		if !nameRE.MatchString(strings.ReplaceAll(name, "_", "-")) || name == MergeArgs ||
			slices.Contains(fixedPlaceholders, name) {
			v.fail("option %q: not a possible name", name)
		}
		if !slices.Contains([]string{KindInt, KindFloat, KindString, KindBool, KindArgs}, spec.Kind) {
			v.fail("option %s: kind %q: want int, float, string, bool or args", name, spec.Kind)
			continue
		}
		if spec.Kind == KindArgs && spec.Flag != "" {
			v.fail("option %s: an option of kind args has no flag", name)
		}
		if name == r.BackendOption && len(spec.Values) == 0 {
			spec.Values = slices.Sorted(maps.Keys(r.Backends))
		}
		if spec.Default != nil {
			def, reason := spec.normalize(spec.Default, Operator)
			if reason != "" {
				v.fail("option %s: default: %s", name, reason)
			}
			spec.Default = def
		}
		r.Options[name] = spec
	}
}
