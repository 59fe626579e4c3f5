package recipe

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/infra/policy"
)

// Recipes that read configuration from a model's folder are not for models that clients register: it may name a library,
// code or another folder to load, or run commands.
func TestRegistrable(t *testing.T) {
	denied := []string{"infinity", "local-tts", "oga-cpu", "oga-hybrid", "oga-npu", "ryzenai-llm", "upstream"}
	for name, r := range Shipped() {
		if r.Registrable() == slices.Contains(denied, name) {
			t.Errorf("%s: registrable %v", name, r.Registrable())
		}
	}
}

func TestShippedIsACopy(t *testing.T) {
	a := Shipped()["llamacpp"]
	delete(a.Options, "ctx_size")
	b := Shipped()["llamacpp"]
	if _, ok := b.Options["ctx_size"]; !ok {
		t.Error("changing one shipped set changed the next")
	}
}

func TestDevicesAndBackend(t *testing.T) {
	set := Shipped()
	for _, tt := range []struct {
		name, recipe string
		opts         Options
		model        policy.Devices
		wantDevices  policy.Devices
		wantBackend  string
	}{
		{"the recipe's own", "llamacpp", nil, 0, policy.GPU, ""},
		{"backend cpu", "llamacpp", Options{"llamacpp_backend": "cpu"}, 0, policy.CPU, "cpu"},
		{"backend wins over the model", "llamacpp", Options{"llamacpp_backend": "cuda"}, policy.CPU, policy.GPU, "cuda"},
		{"a model on the cpu needs the cpu backend", "llamacpp", nil, policy.CPU, policy.CPU, "cpu"},
		{"a model on the gpu leaves the choice", "llamacpp", nil, policy.GPU, policy.GPU, ""},
		{"whisper on the npu", "whispercpp", nil, policy.NPU, policy.NPU, "npu"},
		{"no backends", "oga-hybrid", nil, 0, policy.GPU | policy.NPU, ""},
		{"standin as the model says", "standin", nil, policy.NPU, policy.NPU, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := set[tt.recipe]
			if got := r.DevicesFor(tt.opts, tt.model); got != tt.wantDevices {
				t.Errorf("DevicesFor = %q, want %q", got, tt.wantDevices)
			}
			if got := r.Backend(tt.opts, tt.model); got != tt.wantBackend {
				t.Errorf("Backend = %q, want %q", got, tt.wantBackend)
			}
		})
	}
}

func TestOverride(t *testing.T) {
	over, err := Parse([]byte(`
llamacpp:
  command: [/opt/llama/llama-server, [--model, "{model}"], [--port, "{port}"]]
  env: {GGML_VK_VISIBLE_DEVICES: "0"}
  load_timeout: 20m
my-llama: {inherit: llamacpp, devices: [cpu, gpu], types: llm, type_flags: {llm: --jinja}}
`))
	if err != nil {
		t.Fatal(err)
	}
	base := Shipped()
	set, err := base.With(map[string]Recipe{"llamacpp": over["llamacpp"]})
	if err != nil {
		t.Fatal(err)
	}
	r := set["llamacpp"]
	if r.Program() != "/opt/llama/llama-server" || len(r.Command) != 3 {
		t.Errorf("command = %q", r.Command)
	}
	if r.Env["LLAMA_API_KEY"] != "{api_key}" || r.Env["GGML_VK_VISIBLE_DEVICES"] != "0" {
		t.Errorf("env = %v: entries are to be added", r.Env)
	}
	if load, stall, stop := r.Times(); load != 20*time.Minute || stall != DefaultStallTimeout || stop != DefaultStopGrace {
		t.Errorf("times = %v %v %v", load, stall, stop)
	}
	if p := base["llamacpp"]; p.Program() != "llama-server" || p.Env["GGML_VK_VISIBLE_DEVICES"] != "" {
		t.Error("the base set was changed")
	}

	// my-llama keeps flags of types it no longer has; the error must say so.
	if _, err = base.With(over); err == nil || !strings.Contains(err.Error(), `recipe my-llama: type_flags of "embedding"`) {
		t.Errorf("err = %v", err)
	}
}

func TestInheritFollowsOverrides(t *testing.T) {
	over, err := Parse([]byte("a: {inherit: b, stop_grace: 1s}\nb: {inherit: llamacpp, load_timeout: 7s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	set, err := Shipped().With(over)
	if err != nil {
		t.Fatal(err)
	}
	a := set["a"]
	if load, _, stop := a.Times(); load != 7*time.Second || stop != time.Second || a.Program() != "llama-server" {
		t.Errorf("a = %v %v %q", load, stop, a.Program())
	}
}

// A recipe belongs to the family at the root of its inheritance, however deep; an override keeps its family.
func TestFamily(t *testing.T) {
	over, err := Parse([]byte("a: {inherit: b}\nb: {inherit: llamacpp}\nvllm: {stop_grace: 1s}\ntei: {inherit: vllm, types: embedding}\n"))
	if err != nil {
		t.Fatal(err)
	}
	set, err := Shipped().With(over)
	if err != nil {
		t.Fatal(err)
	}
	if set, err = set.With(map[string]Recipe{"a": {StopGrace: time.Second}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a": "llamacpp", "b": "llamacpp", "llamacpp": "llamacpp", "vllm": "vllm", "tei": "vllm", "oga-npu": "ryzenai-llm",
	} {
		if r := set[name]; r.Family() != want {
			t.Errorf("%s is of family %s, want %s", name, r.Family(), want)
		}
	}
}

func TestMistakesAllAtOnce(t *testing.T) {
	over, err := Parse([]byte(`
bad:
  command: [eng, "{nothing}"]
  env: {"1X": "{port}"}
  types: [llm, poetry]
  type_flags: {image: [-x]}
  health_path: health
  listen: carrier-pigeon
  checkpoint: maybe
  connections: many
  backend_option: eng_backend
  ready: {status: 1000}
  options:
    port: {kind: int}
    n: {kind: int, min: 1, default: 0}
    odd: {kind: complex}
    eng_args: {kind: args, flag: --x}
loop-a: {inherit: loop-b}
loop-b: {inherit: loop-a}
orphan: {inherit: nobody}
empty: {}
`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Shipped().With(over)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"recipe bad: command: unknown placeholder {nothing}",
		`recipe bad: env "1X" is not a variable's name`,
		`recipe bad: unknown type "poetry"`,
		`recipe bad: type_flags of "image"`,
		`recipe bad: health_path "health"`,
		`recipe bad: listen "carrier-pigeon": want port or socket`,
		`recipe bad: checkpoint "maybe"`,
		`recipe bad: connections "many"`,
		"recipe bad: backend_option and backends need each other",
		"recipe bad: backend_option eng_backend is not an option",
		"recipe bad: ready.status 1000",
		`recipe bad: option "port": not a possible name`,
		"recipe bad: option n: default: want at least 1",
		`recipe bad: option odd: kind "complex"`,
		"recipe bad: option eng_args: an option of kind args has no flag",
		"recipe loop-a: inherits from",
		`recipe orphan: inherits from unknown recipe "nobody"`,
		"recipe empty: command is missing",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing %q in:\n%v", want, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"unknown field", "x: {comand: [a]}", "comand"},
		{"unknown device", "x: {devices: tpu}", `unknown device "tpu"`},
		{"bad pattern", "x: {errors: {out_of_memory: ['(']}}", "missing closing )"},
		{"not a mapping", "[1, 2]", "recipes:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestCause(t *testing.T) {
	llama := Shipped()["llamacpp"]
	for line, want := range map[string]Cause{
		"gguf_init_from_file: failed to open GGUF file '/m/x.gguf'":                               CauseFileNotFound,
		"ggml_vulkan: Device memory allocation failed: ErrorOutOfDeviceMemory":                    CauseOutOfMemory,
		"ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory":            CauseOutOfMemory,
		"llama_model_load: error loading model: unknown model architecture: 'xyz'":                CauseRefused,
		"/src/llama-context.cpp:2232: GGML_ASSERT(n_outputs_max <= cparams.n_outputs_max) failed": CauseRefused,
		"/src/ggml.c:3258: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed":                            CauseRefused,
		"/src/ggml.c:100: GGML_ASSERT(ctx->mem_buffer != NULL) failed":                            CauseUnknown,
		"main: server is listening on http://127.0.0.1:1":                                         CauseUnknown,
	} {
		if got := llama.Errors.Cause(line); got != want {
			t.Errorf("Cause(%q) = %q, want %q", line, got, want)
		}
	}
	for name, line := range map[string]string{ // as these engines wrote them
		"vllm":           "Value error, User-specified max_model_len (512) is greater than the derived max_model_len (max_position_embeddings=256 or",
		"infinity":       "ValueError: Unrecognized model in /m. Should have a `model_type` key in its config.json",
		"faster-whisper": "faster-whisper-server: error: unrecognized arguments: --x",
	} {
		r := Shipped()[name]
		if got := r.Errors.Cause(line); got != CauseRefused {
			t.Errorf("%s: Cause(%q) = %q, want %q", name, line, got, CauseRefused)
		}
	}
}

// The catalog is published as JSON, including recipes.
func TestRecipesSurviveJSON(t *testing.T) {
	for name, want := range Shipped() {
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Recipe
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := got.Validate(); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s came back as\n%+v\nwant\n%+v", name, got, want)
		}
	}
}

func TestUses(t *testing.T) {
	set := Shipped()
	llama, flm := set["llamacpp"], set["flm"]
	inArgs := Recipe{Command: []Group{{"x"}, {"--api-key", "{api_key}"}}}
	if !llama.Uses("api_key") || flm.Uses("api_key") || !inArgs.Uses("api_key") {
		t.Error(llama.Env, flm.Env, inArgs.Command)
	}
}

func TestExpand(t *testing.T) {
	v := Values{"model": {"/m/{port} x.gguf"}, "port": {"8001"}, "host": {"::1"}, "mmproj": {""}, "options": {"-a", "b c"}}
	for _, tt := range []struct {
		name string
		in   []Group
		want []string
	}{
		{"plain", []Group{{"eng"}, {"--x", "y"}}, []string{"eng", "--x", "y"}},
		{"values are not expanded again, nor split", []Group{{"-m", "{model}"}}, []string{"-m", "/m/{port} x.gguf"}},
		{"inside text", []Group{{"--listen=[{host}]:{port}"}}, []string{"--listen=[::1]:8001"}},
		{"an empty value drops the group", []Group{{"a"}, {"--mmproj", "{mmproj}"}, {"b"}}, []string{"a", "b"}},
		{"an absent value drops the group", []Group{{"--k", "x{nope}"}, {"{nope}"}}, nil},
		{"a list spreads", []Group{{"{options}"}}, []string{"-a", "b c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Expand(tt.in, v)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("Expand = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	if _, err := Expand([]Group{{"x={options}"}}, v); err == nil {
		t.Error("a list inside a text was accepted")
	}
}

// TestRedactor reads a log that the pinned llama-server wrote while serving, with client content marked as private.
func TestRedactor(t *testing.T) {
	const timeless = `root ::= private (
  | "private" [a-z]
"private" digit
parse: error parsing grammar: expecting newline or end at private
`
	const timed = `0.02.661.798 I srv  llama_server: listening on unix:///tmp/engine.sock
parse: error parsing grammar: unexpected end of input

root ::= private
 "private
private three
1.03.523.299 E failed to parse grammar
parse: error parsing grammar: expecting name at private
private
1.06.204.158 W srv    operator(): got exception: {"error":{"code":400,"message":"Unrecognized schema: {\"type\":\"private\"}","type":"invalid_request_error"}}
private end of a line that was cut
1.10.049.018 W common_sampler_types_from_names: unable to match sampler by name 'private
private'
1.10.255.143 E anthropic string not as expected: x-anthropic-billing-header: cch=private
1.10.302.733 E slot     iterate: id  0 | task 7 | got exception: Unexpected empty grammar stack after accepting piece: private (99)
1.10.302.734 E Tool call mismatch: prev='private' new='private'
1.11.565.348 I slot launch_slot_: id  0 | task 7 | processing task
/src/ggml/src/ggml.c:1234: GGML_ASSERT(a->ne[0] == b->ne[0]) failed
#1  0x00007f0000000000 in ggml_abort ()
terminate called after throwing an instance of 'std::runtime_error'
  what():  private
`
	kept := []string{"llama_server: listening", "E failed to parse grammar", `got exception: {"error":{"code":400,[redacted]`, "slot launch_slot_", "GGML_ASSERT(a->ne[0]", "ggml_abort", "terminate called"}
	for log, want := range map[string][]string{timeless: {"parse: [redacted]"}, timed: kept} {
		d, got := Redactor{Recipe: shipped(t, "llamacpp")}, ""
		for line := range strings.Lines(log) {
			got += d.Line(strings.TrimSuffix(line, "\n")) + "\n"
		}
		if strings.Contains(got, "private") {
			t.Errorf("quoted:\n%s", got)
		}
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("no %q in\n%s", text, got)
			}
		}
	}
}
