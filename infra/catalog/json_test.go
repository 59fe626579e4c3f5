package catalog

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anyCatalog draws the text of a valid file with any content, and returns what Parse makes of it.
func anyCatalog(t *rapid.T) *Catalog {
	var b strings.Builder
	n := rapid.IntRange(0, 5).Draw(t, "models")
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	b.WriteString("models:\n")
	for i := range n {
		fmt.Fprintf(&b, "  m%d:\n    type: llm\n", i)
		switch rapid.IntRange(0, 2).Draw(t, "recipe") {
		case 0:
			b.WriteString("    recipe: standin\n    device: [" + pick("device", "cpu", "gpu", "npu", "gpu, npu") + "]\n")
			b.WriteString("    options: {args: " + pick("args", `"--x <&>"`, `"é"`, `""`, "--y") + "}\n")
		case 1:
			b.WriteString("    recipe: llamacpp\n    checkpoint: " + pick("checkpoint", "a.gguf", "s3://b/k", "hf://o/r/f-Q4_0.gguf@v1", "s3://b/k\n    sha256: "+strings.Repeat("aB", 32)) + "\n")
			fmt.Fprintf(&b, "    options: {ctx_size: %d}\n", rapid.IntRange(1, 1<<20).Draw(t, "ctx"))
		case 2:
			b.WriteString("    recipe: own\n    device: cpu\n")
		}
		for _, line := range []string{
			fmt.Sprintf("aliases: [alias-%d, Alias-%d]", i, i), "pin: true", "idle: 0s", "idle: 90m", "memory: 3GiB",
			"hosts: [anywhere]", fmt.Sprintf("fallback: [m%d]", (i+1)%n), "replicas: {max: 7}", "mm_cache: none", "dimensions: true",
			"normalize_scores: true", "labels: [vision, 7]", `description: "<b>\n\u2028"`,
		} {
			self := strings.HasPrefix(line, "fallback") && n == 1
			twice := line == "idle: 90m" && strings.HasSuffix(b.String(), "idle: 0s\n")
			if !self && !twice && rapid.Bool().Draw(t, line) {
				b.WriteString("    " + line + "\n")
			}
		}
	}
	b.WriteString("recipes:\n  own: {inherit: standin, options: {steps: {kind: int, default: 20, min: 1}, cfg: {kind: float, default: 7}}}\n")
	if n > 0 && rapid.Bool().Draw(t, "rest") {
		b.WriteString("defaults: {idle: 1m, models: {llm: m0}}\nwarm:\n- {model: m0, schedule: '*/15 8-18 * * mon-fri', for: 20m}\nbatch_hours: {schedule: 0 1 * * *, for: 5h}\n")
	}
	c, _, err := Parse("drawn", []byte(b.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	return c
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCatalog(t)
		text, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Unmarshal(text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := back.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, again) || back.Version != c.Version {
			t.Fatalf("written %s\nread    %s", text, again)
		}
		for i, m := range c.Models {
			if Outdated(c, back, m.ID) {
				t.Fatalf("model %s differs as it was read back", m.ID)
			}
			if got := back.Models[i]; !reflect.DeepEqual(got, m) {
				t.Fatalf("model written %+v\nread %+v", m, got)
			}
		}
	})
}

func TestRoundTripOfHosts(t *testing.T) {
	c := mustParse(t, documented)
	text, _ := c.Marshal()
	back, err := Unmarshal(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := back.Marshal(); err != nil || !bytes.Equal(again, text) {
		t.Errorf("%v; read back\n%s\nwritten\n%s", err, again, text)
	}
	for name, want := range c.Recipes {
		if got := back.Recipes[name]; !reflect.DeepEqual(got.Options, want.Options) {
			t.Errorf("options of %s: %+v, want %+v", name, got.Options, want.Options)
		}
	}
	for _, part := range []string{`"devices":"cpu gpu"`, `"idle":"5m0s"`, `"for":"2h0m0s"`, `"schedule":"0 8 * * 1-5"`} {
		if !bytes.Contains(text, []byte(part)) {
			t.Errorf("the text does not hold %s", part)
		}
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	text, _ := mustParse(t, documented).Marshal()
	for name, damage := range map[string]func(string) string{
		"half":       func(s string) string { return s[:len(s)/2] },
		"bad option": func(s string) string { return strings.Replace(s, `"ctx_size":4096`, `"ctx_size":"x"`, 1) },
		"no version": func(s string) string { return strings.Replace(s, `"version":"`, `"was":"`, 1) },
		"nothing":    func(string) string { return "{}" },
		"null":       func(string) string { return "null" },
		"null model": func(string) string { return `{"models":[null]}` },
		"null host":  func(string) string { return `{"hosts":[null]}` },
	} {
		if _, err := Unmarshal([]byte(damage(string(text)))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestVersionIsStable guards against a version that depends on the order of maps or on when it was made, because
// gateways compare versions that each computed itself.
func TestVersionIsStable(t *testing.T) {
	first := mustParse(t, documented)
	for range 20 {
		if v := mustParse(t, documented).Version; v != first.Version {
			t.Fatalf("versions %s and %s", first.Version, v)
		}
	}
	if len(first.Version) != 16 {
		t.Errorf("version %q", first.Version)
	}
}

// A catalog of a newer program may have members that this one does not know.
func TestUnmarshalOfANewerCatalogue(t *testing.T) {
	c := mustParse(t, named)
	data, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(data, []byte(`"models":`), []byte(`"later":{"a":1},"models":`), 1)
	const version = "0123456789abcdef"
	newer = bytes.Replace(newer, []byte(c.Version), []byte(version), 1)
	got, err := Unmarshal(newer)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != version || len(got.Models) != len(c.Models) {
		t.Errorf("version %s, %d models", got.Version, len(got.Models))
	}
}
