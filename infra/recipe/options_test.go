package recipe

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func shipped(t testing.TB, name string) *Recipe {
	t.Helper()
	r, ok := Shipped()[name]
	if !ok {
		t.Fatalf("no recipe %s", name)
	}
	return &r
}

func TestParseOptions(t *testing.T) {
	for _, tt := range []struct {
		name, recipe, option string
		in                   any
		want                 any    // nil if refused
		reason               string // part of the refusal
	}{
		{"int", "llamacpp", "ctx_size", 4096, int64(4096), ""},
		{"int from JSON", "llamacpp", "ctx_size", json.Number("4096"), int64(4096), ""},
		{"int as float64", "llamacpp", "ctx_size", float64(4096), int64(4096), ""},
		{"int from YAML", "llamacpp", "ctx_size", uint64(4096), int64(4096), ""},
		{"automatic", "llamacpp", "ctx_size", -1, int64(-1), ""},
		{"zero", "llamacpp", "ctx_size", 0, nil, "want 1 to 16777216, or -1 for automatic"},
		{"negative", "llamacpp", "ctx_size", -2, nil, "want 1 to 16777216, or -1 for automatic"},
		{"fraction", "llamacpp", "ctx_size", 1.5, nil, "want a whole number"},
		{"int in quotes", "llamacpp", "ctx_size", "4096", int64(4096), ""},
		{"whole float of JSON", "llamacpp", "ctx_size", json.Number("4096.0"), int64(4096), ""},
		{"text for int", "llamacpp", "ctx_size", "many", nil, "want a whole number"},
		{"bool for int", "llamacpp", "ctx_size", true, nil, "want a whole number"},
		{"huge", "llamacpp", "ctx_size", 1e300, nil, "want a whole number"},
		{"huge unsigned", "llamacpp", "ctx_size", uint64(math.MaxUint64), nil, "want a whole number"},
		{"list", "llamacpp", "ctx_size", []any{1}, nil, "want a whole number"},
		{"zero batch", "llamacpp", "n_batch", 0, nil, "want 2 to 1048576"},
		{"float", "sd-cpp", "cfg_scale", 7.5, 7.5, ""},
		{"float from a whole number", "sd-cpp", "cfg_scale", 7, 7.0, ""},
		{"NaN", "sd-cpp", "cfg_scale", math.NaN(), nil, "want a number"},
		{"NaN in quotes", "sd-cpp", "cfg_scale", "nan", nil, "want a number"},
		{"out of range", "sd-cpp", "width", 100000, nil, "want 64 to 8192"},
		{"backend", "llamacpp", "llamacpp_backend", "vulkan", "vulkan", ""},
		{"unknown backend", "llamacpp", "llamacpp_backend", "opencl", nil, "want one of cpu, cuda, metal, rocm, vulkan"},
		{"merge_args", "llamacpp", "merge_args", true, true, ""},
		{"merge_args of the wrong type", "llamacpp", "merge_args", "yes", nil, "want true or false"},
		{"merge_args without args", "kokoro", "merge_args", true, nil, "recipe kokoro has no such option"},
		{"of another recipe", "llamacpp", "steps", 20, nil, "recipe llamacpp has no such option"},
		{"unknown", "llamacpp", "ctx-size", 1, nil, "no such option"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := shipped(t, tt.recipe).ParseOptions(map[string]any{tt.option: tt.in}, Client)
			if tt.want != nil {
				if err != nil || got[tt.option] != tt.want {
					t.Errorf("got %#v, %v; want %#v", got[tt.option], err, tt.want)
				}
				return
			}
			var oe *OptionError
			if !errors.As(err, &oe) || oe.Name != tt.option || !strings.Contains(oe.Reason, tt.reason) {
				t.Errorf("err = %v, want option %s: …%s…", err, tt.option, tt.reason)
			}
		})
	}
}

func TestNullIsKept(t *testing.T) {
	got, err := shipped(t, "llamacpp").ParseOptions(map[string]any{"ctx_size": nil}, Client)
	if v, ok := got["ctx_size"]; err != nil || !ok || v != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestAllOptionMistakesAtOnce(t *testing.T) {
	_, err := shipped(t, "llamacpp").ParseOptions(Options{"ctx_size": -5, "n_batch": "x", "steps": 1, "n_ubatch": 512}, Client)
	for _, want := range []string{"option ctx_size:", "option n_batch:", "option steps:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %q in it", err, want)
		}
	}
}

func TestSplitArgs(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"  \t \r\n", nil},
		{"-a\nb \\\n-c \"d\ne\"", []string{"-a", "b", "-c", "d\ne"}},
		{"-a  b\tc", []string{"-a", "b", "c"}},
		{`-a "b c" 'd "e" f'`, []string{"-a", "b c", `d "e" f`}},
		{`a""b '' ""`, []string{"ab", "", ""}},
		{`a\ b \"x\" "q\"\\\n"`, []string{"a b", `"x"`, `q"\\n`}},
		{`'a\b'`, []string{`a\b`}},
		{"$HOME `id` $(id) *; rm -rf / | x > y & # z", strings.Fields("$HOME `id` $(id) *; rm -rf / | x > y & # z")},
		{"größe=ü", []string{"größe=ü"}},
	} {
		if got, err := SplitArgs(tt.in); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("SplitArgs(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{`"a`, `'a`, `a\`, "a\x00b", strings.Repeat("x", maxArgs+1)} {
		if got, err := SplitArgs(in); err == nil {
			t.Errorf("SplitArgs(%.20q) = %.20q, want an error", in, got)
		}
	}
}

func TestEffective(t *testing.T) {
	llama := shipped(t, "llamacpp")
	for _, tt := range []struct {
		name   string
		layers Layers
		want   string // canonical
	}{
		{"defaults", Layers{}, `{"ctx_size":-1}`},
		{"each beats those below", Layers{
			Request: Options{"n_batch": int64(5)},
			Saved:   Options{"n_batch": int64(4), "n_ubatch": int64(4)},
			Catalog: Options{"n_batch": int64(3), "n_ubatch": int64(3), "n_parallel": int64(3)},
			Runner:  Options{"n_batch": int64(2), "n_ubatch": int64(2), "n_parallel": int64(2), "ctx_size": int64(2)},
		}, `{"ctx_size":2,"n_batch":5,"n_parallel":3,"n_ubatch":4}`},
		{"null skips the saved value alone", Layers{
			Request: Options{"ctx_size": nil, "n_batch": nil},
			Saved:   Options{"ctx_size": int64(1024)},
			Catalog: Options{"ctx_size": int64(2048), "n_batch": int64(7)},
		}, `{"ctx_size":2048,"n_batch":7}`},
		{"null without anything below", Layers{Request: Options{"ctx_size": nil}, Saved: Options{"ctx_size": int64(9)}},
			`{"ctx_size":-1}`},
		{"args replace", Layers{Catalog: Options{"llamacpp_args": "-b"}, Runner: Options{"llamacpp_args": "-a"}},
			`{"ctx_size":-1,"llamacpp_args":"-b"}`},
		{"args merge", Layers{
			Catalog: Options{"llamacpp_args": "-b", "merge_args": true}, Runner: Options{"llamacpp_args": "-a"},
		}, `{"ctx_size":-1,"llamacpp_args":"-a -b"}`},
		{"args merge with nothing", Layers{Catalog: Options{"llamacpp_args": "-c", "merge_args": true}},
			`{"ctx_size":-1,"llamacpp_args":"-c"}`},
		{"args from outside count nothing", Layers{
			Request: Options{"llamacpp_args": "-c", "merge_args": true}, Saved: Options{"llamacpp_args": "-c"},
			Catalog: Options{"llamacpp_args": "-b"},
		}, `{"ctx_size":-1,"llamacpp_args":"-b"}`},
		{"the runner's flags for other recipes", Layers{Runner: Options{"whispercpp_args": "-x", "n_batch": int64(2)}},
			`{"ctx_size":-1,"n_batch":2}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			saved := tt.layers.Saved.Canonical()
			if got := llama.Effective(tt.layers).Canonical(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if tt.layers.Saved.Canonical() != saved {
				t.Error("the saved layer was changed")
			}
		})
	}
}

// Effective options can be stored as JSON, read back, checked and merged again without a change.
func TestOptionsRoundTrip(t *testing.T) {
	r := shipped(t, "sd-cpp")
	rapid.Check(t, func(t *rapid.T) {
		in := map[string]any{}
		add := func(name string, v any) {
			if rapid.Bool().Draw(t, "has "+name) {
				in[name] = v
			}
		}
		add("steps", rapid.IntRange(1, 1000).Draw(t, "steps"))
		add("cfg_scale", rapid.Float64Range(0, 100).Draw(t, "cfg_scale"))
		add("width", rapid.IntRange(64, 8192).Draw(t, "width"))
		opts, err := r.ParseOptions(in, Operator)
		if err != nil {
			t.Fatal(err)
		}
		eff := r.Effective(Layers{Request: opts})
		var stored Options
		if err := json.Unmarshal([]byte(eff.Canonical()), &stored); err != nil {
			t.Fatal(err)
		}
		again, err := r.ParseOptions(stored, Operator)
		if err != nil || !again.Equal(eff) {
			t.Fatalf("came back as %s, %v; want %s", again.Canonical(), err, eff.Canonical())
		}
		if next := r.Effective(Layers{Saved: again}); !next.Equal(eff) {
			t.Fatalf("effective again: %s, want %s", next.Canonical(), eff.Canonical())
		}
	})
}

func TestOptionsUnmarshal(t *testing.T) {
	var o Options
	if err := json.Unmarshal([]byte(`{"a":1,"b":1.5,"c":"<x>","d":true,"e":null}`), &o); err != nil {
		t.Fatal(err)
	}
	if o["a"] != int64(1) || o["b"] != 1.5 || o.Canonical() != `{"a":1,"b":1.5,"c":"<x>","d":true,"e":null}` {
		t.Errorf("options = %#v", o)
	}
	for _, in := range []string{`[]`, `{"a":{}}`, `{"a":[1]}`, `{"a":1e999}`, `3`} {
		if err := json.Unmarshal([]byte(in), &o); err == nil {
			t.Errorf("%s was accepted", in)
		}
	}
}

func TestOptionArgs(t *testing.T) {
	r := &Recipe{Options: map[string]OptionSpec{
		"n":      {Kind: KindInt, Auto: ptr(-1), Flag: "--n"},
		"f":      {Kind: KindFloat, Flag: "--f"},
		"on":     {Kind: KindBool, Flag: "--on"},
		"off":    {Kind: KindBool, Flag: "--off"},
		"silent": {Kind: KindString},
		"x_args": {Kind: KindArgs},
	}}
	got, err := r.OptionArgs(Options{"n": int64(3), "f": 0.0001, "on": true, "off": false, "silent": "s", "x_args": "--n 4"})
	if want := []string{"--f", "0.0001", "--n", "3", "--on", "--n", "4"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("args = %q, %v; want %q", got, err, want)
	}
	if got, _ := r.OptionArgs(Options{"n": int64(-1)}); len(got) != 0 {
		t.Errorf("automatic gave %q", got)
	}
}

func ptr(f float64) *float64 { return &f }

// TestOnlyTheOperatorSetsTexts: what takes any text is for the models file and the runner's flags; an empty text from
// elsewhere sets nothing.
func TestOnlyTheOperatorSetsTexts(t *testing.T) {
	for name, r := range Shipped() {
		for option, spec := range r.Options {
			if !spec.operatorOnly() {
				continue
			}
			for _, text := range []string{"-np 4", "x", "--trust-remote-code", "/etc/shadow", " "} {
				_, err := r.ParseOptions(Options{option: text}, Client)
				if err == nil || !strings.Contains(err.Error(), "models file") {
					t.Errorf("%s, %s: %q: %v", name, option, text, err)
				}
			}
			if _, err := r.ParseOptions(Options{option: ""}, Client); err != nil {
				t.Errorf("%s, %s: %v", name, option, err)
			}
		}
	}
}

// TestNumbersAreBounded checks that every number in the shipped recipes has a range that fits in calculations.
func TestNumbersAreBounded(t *testing.T) {
	const most = 1 << 50
	for id, r := range Shipped() {
		for name, spec := range r.Options {
			if spec.Kind != KindInt && spec.Kind != KindFloat {
				continue
			}
			if spec.Min == nil || *spec.Min < -most || spec.Max == nil || *spec.Max > most {
				t.Errorf("recipe %s: option %s has no range", id, name)
				continue
			}
			var oe *OptionError
			_, err := r.ParseOptions(Options{name: int64(1<<63 - 1)}, Operator)
			if want := "want " + number(*spec.Min) + " to " + number(*spec.Max); !errors.As(err, &oe) || !strings.HasPrefix(oe.Reason, want) {
				t.Errorf("recipe %s: option %s: %v, want %q", id, name, err, want)
			}
		}
	}
}

// JoinArgs is the inverse of SplitArgs.
func TestJoinArgs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(rapid.StringMatching(`[ -~é\t\r\n]{0,12}`), 1, 8).Draw(t, "args")
		if got, err := SplitArgs(JoinArgs(args)); err != nil || !slices.Equal(got, args) {
			t.Fatalf("%q: %q, %v", args, got, err)
		}
	})
}
