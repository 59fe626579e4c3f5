package mmcache

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/runner/filestate"
	"reveille/testenv/kit"
)

// fakeEncoder returns an encoder whose files are texts in a separate folder, with the same names each time.
func fakeEncoder(t testing.TB, projector string) Encoder {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mmproj.gguf": projector, "llama-server": "program", "libmtmd.so.0": "mtmd", "libggml-cpu.so": "cpu", "libother.so": "other",
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	return Encoder{
		Projector: filepath.Join(dir, "mmproj.gguf"), Program: filepath.Join(dir, "llama-server"),
		Argv: []string{"llama-server", "--model", filepath.Join(dir, "m.gguf"), "--port", "1"},
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func digestOf(t testing.TB, d *filestate.Contents, e Encoder) Digest {
	t.Helper()
	files, err := filestate.OfEngine(e.Projector, e.Program, e.Env)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := e.digest(t.Context(), d, files)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestEncoderDigestCoversFilesAndArguments checks that equal contents in any place are the same encoder, and that any
// other content is another.
func TestEncoderDigestCoversFilesAndArguments(t *testing.T) {
	var d filestate.Contents
	base := digestOf(t, &d, fakeEncoder(t, "A"))
	moved := fakeEncoder(t, "A")
	moved.Argv = append(moved.Argv, "--ctx-size", "9", "-ub=7", "--kv-unified")
	if digestOf(t, &d, moved) != base {
		t.Error("another folder, port or context changed the digest")
	}
	for name, change := range map[string]func(*Encoder){
		"projector": func(e *Encoder) { writeFile(t, e.Projector, "B") },
		"program":   func(e *Encoder) { writeFile(t, e.Program, "programs") },
		"library":   func(e *Encoder) { writeFile(t, filepath.Join(filepath.Dir(e.Program), "libggml-cpu.so"), "avx") },
		"new library": func(e *Encoder) {
			writeFile(t, filepath.Join(filepath.Dir(e.Program), "libggml-vulkan.so"), "vk")
		},
		"flag":         func(e *Encoder) { e.Argv = append(e.Argv, "--image-max-tokens", "64") },
		"unknown flag": func(e *Encoder) { e.Argv = append(e.Argv, "--new-in-this-build") },
		"variable":     func(e *Encoder) { e.Env = []string{"MTMD_BACKEND_DEVICE=CPU"} },
		"same size and time": func(e *Encoder) {
			was, err := os.Stat(e.Projector)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, e.Projector, "C")
			if err := os.Chtimes(e.Projector, was.ModTime(), was.ModTime()); err != nil {
				t.Fatal(err)
			}
		},
		"renamed over": func(e *Encoder) {
			writeFile(t, e.Projector+".new", "D")
			if err := os.Rename(e.Projector+".new", e.Projector); err != nil {
				t.Fatal(err)
			}
		},
	} {
		e := fakeEncoder(t, "A")
		if digestOf(t, &d, e) != base {
			t.Fatal("digests differ before the change")
		}
		if change(&e); digestOf(t, &d, e) == base {
			t.Error(name, "changed and the digest did not")
		}
	}
	other := fakeEncoder(t, "A")
	writeFile(t, filepath.Join(filepath.Dir(other.Program), "libother.so"), "another")
	if digestOf(t, &d, other) != base {
		t.Error("an unrelated library changed the digest")
	}
}

func TestMissingEncoderFileIsAnError(t *testing.T) {
	for name, change := range map[string]func(*Encoder){
		"no projector": func(e *Encoder) { e.Projector += "x" },
		"a folder":     func(e *Encoder) { e.Projector = filepath.Dir(e.Projector) },
		"no program":   func(e *Encoder) { e.Program += "x" },
		"a part is missing": func(e *Encoder) {
			e.Projector = strings.TrimSuffix(e.Projector, ".gguf") + "-00001-of-00002.gguf"
			writeFile(t, e.Projector, "1")
		},
		"too many parts": func(e *Encoder) {
			e.Projector = strings.TrimSuffix(e.Projector, ".gguf") + "-00001-of-99999.gguf"
			writeFile(t, e.Projector, "1")
		},
	} {
		e := fakeEncoder(t, "A")
		if change(&e); name == "" {
			continue
		}
		if files, err := filestate.OfEngine(e.Projector, e.Program, e.Env); err == nil {
			t.Errorf("%s: %v", name, files)
		}
	}
	e := fakeEncoder(t, "A")
	e.Projector = strings.TrimSuffix(e.Projector, ".gguf") + "-00002-of-00002.gguf"
	writeFile(t, e.Projector, "2")
	first := strings.Replace(e.Projector, "00002-of", "00001-of", 1)
	writeFile(t, first, "1")
	var d filestate.Contents
	before := digestOf(t, &d, e)
	writeFile(t, first, "one")
	if digestOf(t, &d, e) == before {
		t.Error("the first part changed and the digest did not")
	}
}

func TestFileChangedDuringHashingIsNotCached(t *testing.T) {
	e := fakeEncoder(t, "A")
	files, err := filestate.OfEngine(e.Projector, e.Program, e.Env)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, e.Projector, "B")
	if _, err := e.digest(t.Context(), &filestate.Contents{}, files); err == nil {
		t.Error("hashed another state than the recorded one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fakeEncoder(t, "A").digest(ctx, &filestate.Contents{}, files); err == nil {
		t.Error("a canceled digest was completed")
	}
}

func TestEncoderArgsLeaveOutNonEncoderArguments(t *testing.T) {
	got := encoderArgs([]string{"llama-server", "--model", "m", "-np", "2", "--image-max-tokens", "64", "--flash-attn=off", "--host=h", "-c", "8", "--device", "none", "--jinja", "-t", "1", "--port"})
	want := []string{"--image-max-tokens", "64", "--flash-attn=off", "--device", "none", "-t", "1"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestNothingIsCachedBeforeStarted checks that nothing is served or stored before the engine runs and its files are
// known, and never if one of them changed while the engine started.
func TestNothingIsCachedBeforeStarted(t *testing.T) {
	m, v, raw := Media{Image, 1, 1}, numbered(1), []byte{1, 2, 3}
	attach := func(s *Server, e Encoder) *Attachment {
		a, err := s.Attach(modelOf("m.gguf+p.gguf"), e)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	uncached := func(s *Server, a *Attachment) {
		t.Helper()
		x := a.dial(t)
		for range 2 {
			got := x.lookup(t, m, raw, v.Layout)
			if got.status != statusMiss || got.ident != (Ident{}) {
				t.Fatalf("%+v", got)
			}
			if got := x.acquire(t, m, got.ident, v.Layout, 1000); got.status != statusBusy {
				t.Fatalf("%+v", got)
			}
		}
		x.send(t, opStore, item{media: m, layout: v.Layout, bytes: uint64(len(v.Floats))}, 0, v.Floats)
		kit.Eventually(t, "the store's refusal", func() bool { return s.m.refused[reasonProtocol].Get() > 0 })
		if n, _ := s.l1.size(); n != 0 {
			t.Error("something was stored")
		}
	}
	quick := func(c *Config) { c.Library, c.LookupWait = "/lib/"+LibraryName, 20*time.Millisecond }

	s := newServer(t, quick)
	early := attach(s, fakeEncoder(t, "A"))
	uncached(s, early)
	early.Started()
	if _, ok := early.awaitNamespace(t.Context()); !ok {
		t.Fatal("not known after the start")
	}
	early.dial(t).insert(t, m, raw, v)
	kit.Eventually(t, "a hit", func() bool { return early.dial(t).lookup(t, m, raw, v.Layout).status == statusHit })

	s = newServer(t, quick)
	e := fakeEncoder(t, "A")
	changed := attach(s, e)
	writeFile(t, e.Projector, "B")
	changed.Started()
	if _, ok := changed.awaitNamespace(t.Context()); ok {
		t.Fatal("a file that changed during the start was accepted")
	}
	uncached(s, changed)
	if s.m.refused[reasonIdentity].Get() != 2 {
		t.Error("not counted")
	}

	// The same file names with other contents are another encoder. A file replaced under a running engine is still the
	// old one for that engine, and a new one for the next.
	s = newServer(t, func(c *Config) { c.Library = "/lib/" + LibraryName })
	a, b := attach(s, e), attach(s, fakeEncoder(t, "A"))
	a.Started()
	b.Started()
	a.dial(t).insert(t, m, raw, v)
	if b.dial(t).lookup(t, m, raw, v.Layout).status != statusMiss {
		t.Error("one model's output was served to another of the same base names")
	}
	writeFile(t, e.Projector, "C")
	kit.Eventually(t, "a hit of the engine that runs", func() bool { return a.dial(t).lookup(t, m, raw, v.Layout).status == statusHit })
	next := attach(s, e)
	next.Started()
	if next.dial(t).lookup(t, m, raw, v.Layout).status != statusMiss {
		t.Error("an engine with a replaced projector was served the old one's output")
	}
}
