package setup

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/testenv"
)

// lay copies files into a folder: name → source.
func lay(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, from := range files {
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(from, to); err != nil {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, text, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// write returns the file's models, checked as an editor and as a gateway do.
func write(t *testing.T, s *Scan, m Machine) (map[string]*catalog.Model, string) {
	t.Helper()
	var out bytes.Buffer
	if err := s.Write(&out, m, "models.schema.json"); err != nil {
		t.Fatal(err)
	}
	c, _, err := catalog.Parse("models.yaml", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	var v any
	if err := json.Unmarshal([]byte(catalog.Schema), &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err == nil {
		err = yaml.Unmarshal(out.Bytes(), &v)
	}
	if err == nil {
		err = resolved.Validate(v)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	models := map[string]*catalog.Model{}
	for _, one := range c.Models {
		models[one.ID] = one
	}
	return models, out.String()
}

func TestFolder(t *testing.T) {
	files := testenv.Models(t)
	dir, outside := t.TempDir(), t.TempDir()
	mmproj := filepath.Join(filepath.Dir(files.Gemma), "gemma-3-270m-mmproj.gguf")
	lay(t, outside, map[string]string{"secret.gguf": files.Gemma})
	lay(t, dir, map[string]string{
		"org/repo/Gemma-3-270m-Q4_K_M.gguf": files.Gemma, "org/repo/mmproj-F16.gguf": mmproj,
		"two/tiny-gemma.gguf": filepath.Join(filepath.Dir(files.Gemma), "tiny-gemma.gguf"), "two/a-mmproj.gguf": mmproj, "two/b-mmproj.gguf": mmproj,
		"hub/blobs/abc": files.MiniLM, "rank: \"it\" #1.gguf": files.Reranker, "line\n.gguf": files.Gemma, "byte\xff.gguf": files.Gemma,
		"big-00002-of-00002.gguf": files.Gemma,
	})
	for name, text := range map[string]string{"broken.gguf": "GGUF\x03\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff", "empty.gguf": "", "notes.txt": "no"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"hub/minilm.gguf": "blobs/abc", "hub/again.gguf": "minilm.gguf", "escape.gguf": filepath.Join(outside, "secret.gguf"),
		"up.gguf": "../" + filepath.Base(outside) + "/secret.gguf", "loop": ".", "folder": outside, "self.gguf": "self.gguf",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.gguf"), 0o600); err != nil {
		t.Fatal(err)
	}
	var s Scan
	if err := s.Folder(dir); err != nil {
		t.Fatal(err)
	}
	models, text := write(t, &s, Machine{Kinds: policy.CPU, Budget: map[policy.Devices]int64{policy.CPU: 1 << 40}})
	for id, want := range map[string]struct {
		t      policy.Type
		file   string
		mmproj string
	}{
		"gemma-3-270m-q4_k_m": {policy.LLM, "org/repo/Gemma-3-270m-Q4_K_M.gguf", "org/repo/mmproj-F16.gguf"},
		"tiny-gemma":          {policy.LLM, "two/tiny-gemma.gguf", ""},
		"again":               {policy.Embedding, "hub/again.gguf", ""},
		"rank-it-1":           {policy.Reranking, "rank: \"it\" #1.gguf", ""},
	} {
		m := models[id]
		if m == nil {
			t.Errorf("no %s in\n%s", id, text)
			continue
		}
		mmproj := want.mmproj
		if mmproj != "" {
			mmproj = filepath.Join(dir, mmproj)
		}
		if m.Type != want.t || m.Checkpoint != filepath.Join(dir, want.file) || m.MMProj != mmproj || m.Devices != policy.CPU {
			t.Errorf("%s: %+v", id, m)
		}
	}
	if len(models) != 4 {
		t.Errorf("%d models, want 4:\n%s", len(models), text)
	}
	for _, out := range []string{"broken.gguf: ", "empty.gguf: ", "escape.gguf: ", "up.gguf: ", "self.gguf: ", "pipe.gguf: ", "cannot hold its name"} {
		if !strings.Contains(text, out) {
			t.Errorf("nothing is said of %s in\n%s", out, text)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "big-0000") {
		t.Errorf("the scan left its folder, or took a later part for a model:\n%s", text)
	}
	if err := s.Folder(filepath.Join(dir, "absent")); err != nil {
		t.Error(err)
	}
}

// A model goes to the GPU if that holds it, else to the processor.
func TestDevice(t *testing.T) {
	files := testenv.Models(t)
	both := policy.CPU | policy.GPU
	for name, c := range map[string]struct {
		m    Machine
		want policy.Devices
	}{
		"no GPU":            {Machine{Kinds: policy.CPU, Budget: map[policy.Devices]int64{policy.CPU: 1 << 34}}, policy.CPU},
		"a GPU":             {Machine{Kinds: both, Budget: map[policy.Devices]int64{policy.CPU: 1 << 34, policy.GPU: 1 << 33}}, policy.GPU},
		"too small":         {Machine{Kinds: both, Budget: map[policy.Devices]int64{policy.CPU: 1 << 34, policy.GPU: 1 << 26}}, policy.CPU},
		"both too small":    {Machine{Kinds: both, Budget: map[policy.Devices]int64{policy.CPU: 1 << 26, policy.GPU: 1 << 26}}, policy.GPU},
		"of unknown memory": {Machine{Kinds: both, Budget: map[policy.Devices]int64{policy.CPU: 1 << 34}}, policy.GPU},
	} {
		var s Scan
		dir := t.TempDir()
		lay(t, dir, map[string]string{"a.gguf": files.Gemma})
		if err := s.Folder(dir); err != nil {
			t.Fatal(err)
		}
		models, text := write(t, &s, c.m)
		if models["a"] == nil || models["a"].Devices != c.want || strings.Contains(text, "too much") != (name == "both too small") {
			t.Errorf("%s: want %v in\n%s", name, c.want, text)
		}
	}
}

func TestNothingFound(t *testing.T) {
	if models, text := write(t, &Scan{}, Machine{Devices: "cpu"}); len(models) != 0 || !strings.Contains(text, "No GGUF files") {
		t.Error(text)
	}
}
