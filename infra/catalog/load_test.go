package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// documented is the example from the configuration reference.
const documented = `
defaults: {idle: 10m, models: {llm: gemma-3-270m}}
models:
  gemma-3-270m:
    type: llm
    recipe: llamacpp
    checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf
    mmproj: ""
    aliases: [gemma, "gemma-3-270m:latest"]
    device: cpu
    options: {ctx_size: 4096, llamacpp_args: "-np 4", n_batch: 2048}
    pin: false
    idle: 5m
    hosts: [local]
    fallback: []
recipes: {}
hosts:
  local: {driver: local, devices: [cpu]}
  npu-1: {driver: wol, mac: "00:11:22:33:44:55", address: "192.0.2.10:8090", devices: [cpu, npu], npu_seats: {}}
  gpu:   {driver: asg, group: reveille-gpu, devices: [cpu, gpu], max: 4}
warm:
  - {model: gemma-3-270m, schedule: "0 8 * * 1-5", for: 2h}
`

func TestDocumentedExample(t *testing.T) {
	c, warnings, err := Parse("models.yaml", []byte(documented))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 3 || warnings[0].Line != 7 || warnings[1].Line != 19 || warnings[2].Line != 20 {
		t.Errorf("warnings %v, want one for the missing file and for each of the hosts npu-1 and gpu", warnings)
	}
	m, ok := c.Model("gemma-3-270m")
	if !ok {
		t.Fatal("no model")
	}
	want := recipe.Options{"ctx_size": int64(4096), "llamacpp_args": "-np 4", "n_batch": int64(2048)}
	if m.Type != policy.LLM || m.Devices != policy.CPU || !m.Options.Equal(want) || m.Replicas.Max != 1 ||
		m.MMCache != SharePerKey || *m.Idle != Duration(5*time.Minute) {
		t.Errorf("model %+v", m)
	}
	if got := m.StableID(); got != "gemma-3-270m-q4_k_m.gguf" {
		t.Errorf("stable id %q", got)
	}
	hosts := c.HostsFor(m)
	if len(hosts) != 1 || hosts[0].Name != "local" {
		t.Errorf("hosts %v", hosts)
	}
	for i, h := range c.Slots("gpu") {
		if want := fmt.Sprint("gpu-", i+1); h.Name != want || h.Slot != i+1 || h.Devices != policy.CPU|policy.GPU || !h.Answers("gpu") {
			t.Errorf("slot %+v, want %s", h, want)
		}
	}
	if _, ok := c.Host("gpu"); ok || len(c.Slots("gpu")) != 4 || len(c.Slots("")) != 0 {
		t.Errorf("slots %v, want four, and no host gpu", c.Slots("gpu"))
	}
	if id, ok := c.Default(policy.LLM); !ok || id != m.ID {
		t.Errorf("default llm %q", id)
	}
	p := c.Policy(m)
	if p.ID != m.ID || p.Idle != 5*time.Minute || p.Max != 1 || !slices.Equal(p.Hosts, []string{"local"}) {
		t.Errorf("policy model %+v", p)
	}
}

func TestEverySetting(t *testing.T) {
	c := mustParse(t, `
defaults: {models: {embedding: e}}
models:
  big/model:q4: &big
    type: llm
    recipe: llamacpp
    checkpoint: hf://org/repo/sub/file-Q4_K_M.gguf
    mmproj: hf://org/repo/mmproj-f16.gguf
    options: {ctx_size: -1, llamacpp_backend: cuda, merge_args: true, llamacpp_args: null}
    pin: true
    hosts: [rack, zone-b]
    fallback: small
    replicas: {max: 3}
    memory: 1.5GiB
    mm_cache: none
    labels: [vision]
    description: |
      two
      lines
  user.small: {<<: *big, aliases: [small], memory: 1000, idle: 0s, fallback: [], replicas: }
  e: {type: embedding, recipe: standin, device: [cpu], dimensions: true, hosts: hands}
  r: {type: reranking, recipe: mine, normalize_scores: true}
recipes:
  mine: {inherit: standin, devices: cpu}
hosts:
  a: {driver: ec2, instance: i-0123456789abcdef0, region: eu-west-1, hibernate: true, devices: [cpu, gpu], labels: rack, price: 1.25}
  b: {driver: asg, group: g, devices: [cpu, gpu, npu], labels: [zone-b], npu_seats: {llm: 1, audio: 2}}
  hands: {driver: exec, devices: cpu, commands: {wake: [on, "now"], sleep: [off], state: ask}}
  lan: {driver: wol, mac: "00:11:22:33:44:55", broadcast: "192.0.2.255:9", devices: cpu}
  here: {driver: local, memory: {cpu: 24GiB, gpu: 1000}}
`)
	m, _ := c.Model("big/model:q4")
	if m.Devices != policy.GPU || m.Memory != 3<<29 || m.MMCache != ShareNone || m.Description != "two\nlines\n" ||
		!slices.Equal(m.Fallback, []string{"user.small"}) || m.Replicas.Max != 3 || !m.Pin {
		t.Errorf("%+v", m)
	}
	if _, set := m.Options["llamacpp_args"]; set {
		t.Error("a null option is not absent")
	}
	if got := m.StableID(); got != "org/repo/sub/file-Q4_K_M.gguf+mmproj-f16.gguf" {
		t.Errorf("stable id %q", got)
	}
	var hosts []string
	for _, h := range c.HostsFor(m) {
		hosts = append(hosts, h.Name)
	}
	if !slices.Equal(hosts, []string{"a", "b"}) {
		t.Errorf("hosts %v", hosts)
	}
	small, _ := c.Model("user.small")
	if small.Memory != 1000 || small.Replicas.Max != 1 || len(small.Fallback) != 0 || c.Policy(small).Idle != 1 {
		t.Errorf("%+v", small)
	}
	if h, _ := c.Host("b"); h.Max != 1 || h.NPUSeats[policy.Audio] != 2 {
		t.Errorf("%+v", h)
	}
	if h, _ := c.Host("a"); !h.Hibernate {
		t.Errorf("%+v", h)
	}
	if h, _ := c.Host("lan"); h.Broadcast != "192.0.2.255:9" {
		t.Errorf("%+v", h)
	}
	if h, _ := c.Host("hands"); !slices.Equal(h.Commands.State, []string{"ask"}) {
		t.Errorf("%+v", h)
	}
	if h, _ := c.Host("here"); len(h.Memory) != 2 || h.Memory["cpu"] != 24<<30 || h.Memory["gpu"] != 1000 {
		t.Errorf("%+v", h)
	}
	if r, _ := c.Model("r"); r.Devices != policy.CPU {
		t.Errorf("%+v", r)
	}
}

func TestNothing(t *testing.T) {
	for _, text := range []string{"", "# nothing yet\n", "models:\nhosts:\n", "{}"} {
		c := mustParse(t, text)
		if len(c.Models) != 0 || len(c.Recipes) == 0 || c.Version == "" {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

func TestUnlistedHosts(t *testing.T) {
	c := mustParse(t, "models:\n  a: {type: llm, recipe: standin, device: npu, hosts: [somewhere]}\n")
	if m, _ := c.Model("a"); len(c.HostsFor(m)) != 0 {
		t.Error("a host out of nothing")
	}
}

func TestLoadWarnsOfMissingFiles(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there.gguf")
	file := filepath.Join(dir, "models.yaml")
	text := strings.ReplaceAll(`models:
  a: {type: llm, recipe: llamacpp, checkpoint: THERE}
  b:
    type: llm
    recipe: llamacpp
    checkpoint: THERE.not
    mmproj: THERE
  c: {type: llm, recipe: llamacpp, checkpoint: "s3://bucket/key"}
  d: {type: llm, recipe: vllm, checkpoint: org/name}
`, "THERE", there)
	for name, content := range map[string]string{there: "x", file: text} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, warnings, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || warnings[0].Line != 6 || warnings[0].Path != "models.b.checkpoint" || warnings[0].File != file {
		t.Errorf("warnings:\n%s", warnings)
	}
	away := filepath.Join(dir, "away.yaml")
	if err := os.WriteFile(away, []byte(text+"hosts:\n  pc: {driver: wol, mac: \"00:11:22:33:44:55\", address: \"192.168.1.3:8090\", devices: [cpu, gpu]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, warnings, err := Load(away); err != nil || len(warnings) != 0 {
		t.Errorf("the files are on another machine: %v\n%s", err, warnings)
	}
	if _, _, err := Load(filepath.Join(dir, "no.yaml")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "gateway init") {
		t.Errorf("missing file: %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	_, _, err := Parse("m", []byte(strings.Repeat("#", maxFile+1)))
	if err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

// TestFilesAsPeopleWriteThem: a byte order mark, keys for anchors, merged mappings and arguments over several lines.
func TestFilesAsPeopleWriteThem(t *testing.T) {
	c := mustParse(t, "\xef\xbb\xbf"+`
x-common: &common
  recipe: llamacpp
  checkpoint: a.gguf
  x-why: the same for all
x-more: &more {checkpoint: b.gguf, pin: true}
models:
  a: *common
  b: {pin: false, idle: 1m, <<: [*more, *common]}
  c:
    <<: *common
    options:
      llamacpp_args: >-
        --threads 4
        --no-mmap
  d:
    checkpoint: d.gguf
    options:
      llamacpp_args: |
        --threads 4
        --no-mmap
`)
	for id, want := range map[string]string{"a": "a.gguf false", "b": "b.gguf false", "c": "a.gguf false", "d": "d.gguf false"} {
		m, _ := c.Model(id)
		if got := fmt.Sprint(m.Checkpoint, " ", m.Pin); m.Recipe != "llamacpp" || got != want {
			t.Errorf("%s: %s %s", id, m.Recipe, got)
		}
	}
	for name, text := range map[string]string{
		"little-endian": "\xff\xfem\x00o\x00", "big-endian": "\xfe\xff\x00m\x00o", "without a mark": "m\x00o\x00",
	} {
		if _, _, err := Parse("m", []byte(text)); err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestShortEntry: only a checkpoint is needed where its name says the rest.
func TestShortEntry(t *testing.T) {
	c := mustParse(t, "models: {a: {checkpoint: /m/A.GGUF}, b: {type: embedding, checkpoint: b.gguf, recipe: vllm}}")
	for id, want := range map[string]string{"a": "llm llamacpp", "b": "embedding vllm"} {
		if m, _ := c.Model(id); string(m.Type)+" "+m.Recipe != want {
			t.Errorf("%s: %s %s", id, m.Type, m.Recipe)
		}
	}
}

// TestOrder: models and hosts are in the order of the file, however it is laid out.
func TestOrder(t *testing.T) {
	c := mustParse(t, `
models: {z: {recipe: standin, device: cpu}, a: {recipe: standin, device: cpu}, m: {recipe: standin, device: cpu}}
hosts:
  y: {driver: local}
  b: {driver: local}
`)
	got := c.Models[0].ID + c.Models[1].ID + c.Models[2].ID + c.Hosts[0].Name + c.Hosts[1].Name
	if got != "zamyb" {
		t.Errorf("the order is %s", got)
	}
}

// FuzzParse checks that no text makes Parse panic, that every problem has a text, and that what is accepted can be
// published and read back.
func FuzzParse(f *testing.F) {
	f.Add([]byte(documented))
	f.Add([]byte("models:\n  a: &x {<<: *x}\n"))
	f.Add([]byte("models: {a: {type: llm, recipe: standin, device: cpu, options: {args: --hang}}}"))
	f.Add([]byte("? [a]\n: !!str &b c\n--- |\n x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := Parse("f", data)
		if err != nil {
			problems, ok := err.(Problems)
			if !ok || len(problems) == 0 {
				t.Fatalf("error %T %v", err, err)
			}
			for _, p := range problems {
				if p.Text == "" {
					t.Fatalf("problem without a text: %+v", p)
				}
			}
			return
		}
		text, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Unmarshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := back.Marshal(); string(again) != string(text) {
			t.Fatal("round trip changed the catalog")
		}
	})
}

// If a model's backend can be chosen at its load, a device that no host has is only a warning.
func TestBackendOfAnotherDevice(t *testing.T) {
	c, warnings, err := Parse("models.yaml", []byte("models:\n  a: {type: llm, recipe: llamacpp, checkpoint: a.gguf}\nhosts:\n  small: {driver: local, devices: [cpu]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := c.Model("a"); m.Devices != policy.GPU {
		t.Errorf("devices %v", m.Devices)
	}
	if text := fmt.Sprint(warnings); !strings.Contains(text, "devices (gpu), unless llamacpp_backend") {
		t.Errorf("warnings: %s", text)
	}
}

func TestAliasesWithMembers(t *testing.T) {
	text := `
models:
  m: {recipe: standin, device: cpu, aliases: {plain: , high: {reasoning_effort: high, force: {max_tokens: 5}}}}
  n: {recipe: standin, device: cpu, aliases: one}
any: {first: [n, high]}
`
	c, _, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	m, n := c.Models[0], c.Models[1]
	if fmt.Sprint(m.Aliases, n.Aliases, m.Presets, c.Any) != "[high plain] [one] map[high:{map[reasoning_effort:high] map[max_tokens:5]}] map[first:[n m]]" {
		t.Error(m.Aliases, n.Aliases, m.Presets, c.Any)
	}
	for wrong, want := range map[string]string{
		"{m: {recipe: standin, device: cpu, aliases: {a: {model: x}}}}":                                             `an alias cannot set "model"`,
		"{m: {recipe: standin, device: cpu, aliases: {a: {force: 3}}}}":                                             "force: want members",
		"{m: {recipe: standin, device: cpu}}\nany: {m: [m]}":                                                        `the name "m" belongs to the model m`,
		"{m: {recipe: standin, device: cpu}}\nany: {a: [x]}":                                                        `unknown model "x"`,
		"{m: {recipe: standin, device: cpu}}\nany: {a: []}":                                                         "no models",
		"{m: {recipe: standin, device: cpu}, v: {type: embedding, recipe: standin, device: cpu}}\nany: {a: [m, v]}": "v is of type embedding, not llm",
	} {
		if _, _, err := Parse("f", []byte("models: "+wrong)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

func TestBackgroundRules(t *testing.T) {
	for wrong, want := range map[string]string{
		"{then: wait}":                         "no condition",
		"{client: nobody}":                     `unknown client "nobody": want claude-code, continue, librechat, open-webui`,
		"{path: /v1/*, then: later}":           "want one of loaded wait refuse",
		"{headers: {user-agent: '[a'}}":        `bad pattern "[a"`,
		"{client: continue, last_message: ''}": "an empty text",
	} {
		if _, _, err := Parse("f", []byte("background: ["+wrong+"]")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
