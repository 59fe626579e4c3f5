package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// The shipped recipes of NPU engines load, answer and swap, over a stand-in under the names of their programs. With one seat
// no two of them ever run at once; with a seat for each type, one of each does.
func TestNPURecipes(t *testing.T) {
	t.Parallel()
	bin, weights := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  case $1 in --host) host=$2 ;; --port) port=$2 ;; esac\n  shift\ndone\nexec " +
		testenv.Standin(t) + " --host \"$host\" --port \"$port\"\n"
	for _, name := range []string{"flm", "ryzenai-server"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	npu := func(typ, recipe, checkpoint string) string {
		return fmt.Sprintf("%s, recipe: %s, checkpoint: %q, device: npu", typ, recipe, checkpoint)
	}
	models := calls.Catalogue{
		"flm": npu("llm", "flm", "qwen3:4b"), "ears": npu("audio", "flm", "whisper-v3:turbo"), "vec": npu("embedding", "flm", "embed-gemma:300m"),
		"ryzen": npu("llm", "ryzenai-llm", weights), "oga": npu("llm", "oga-npu", weights), "hybrid": npu("llm", "oga-hybrid", weights),
	}
	for _, r := range []struct {
		name, entry string
		most        int
		loaded      []string // after each was used in this order
	}{
		{"one seat", "", 1, []string{"hybrid"}},
		{"three seats", ", npu_seats: {llm: 1, audio: 1, embedding: 1}", 3, []string{"ears", "hybrid", "vec"}},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := worlds.StartFleet(t, worlds.Fleet{Models: models, Hosts: []worlds.Host{{
				Name: "h", Entry: r.entry, Flags: []string{"--max-loaded-models=-1"}, Env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")},
			}}})
			engines := func() (n int) {
				for _, p := range testenv.Descendants(w.Runner().PID()) {
					if strings.Contains(p.Args, "--port") {
						n++
					}
				}
				return n
			}
			for _, m := range []string{"flm", "ears", "vec", "ryzen", "oga", "hybrid"} {
				if a := w.Use(m); a.Header.Get("x-cold-start") != "1" || !strings.Contains(w.Field(m, "device"), "npu") {
					t.Errorf("%s on %q: %v", m, w.Field(m, "device"), a.Header)
				}
			}
			kit.Becomes(t, "loaded", r.loaded, w.Loaded)
			var all []<-chan calls.Answer
			for m := range models {
				c, _ := w.Later(m)
				all = append(all, c)
			}
			for _, c := range all {
				for ; len(c) == 0; time.Sleep(10 * time.Millisecond) {
					if n := engines(); n > r.most {
						t.Fatalf("%d engines at once", n)
					}
				}
				w.Await("all at once", c)
			}
		})
	}
}
