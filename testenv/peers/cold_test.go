package peers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

// Ways to get an answer of a model that is not loaded, from the real llama-server.
const (
	byDefaults = "by hand, llama-server's defaults"
	bySame     = "by hand, the flags of gateway run"
	byGateway  = one
)

var coldWays = []string{byDefaults, bySame, byGateway}

// coldTimes are ms from the request, or the spawn, to the first byte of the answer: of a cold start, and of a swap, which
// ends another engine first.
type coldTimes struct{ start, swap map[string][]float64 }

// engineFlags finds the command of the engine that `gateway run` has started for a file, without its address, and with a
// folder of its own for slots.
func engineFlags(file, slots string) []string {
	for _, p := range family() {
		args := strings.Fields(p.Args)
		if !isEngine(p.Args) || !slices.ContainsFunc(args, func(a string) bool { return filepath.Base(a) == filepath.Base(file) }) {
			continue
		}
		var out []string
		for i := 0; i < len(args); i++ {
			switch args[i] {
			case "--host", "--port":
				i++
			case "--slot-save-path":
				i++
				out = append(out, "--slot-save-path", slots)
			default:
				out = append(out, args[i])
			}
		}
		return out
	}
	return nil
}

// firstByte asks a model for one token, again while nothing listens or the model loads, and reads the answer.
func firstByte(addr, model string) error {
	body := `{"model":"` + model + `","max_tokens":1,"messages":[{"role":"user","content":"Say hello"}]}`
	for end := time.Now().Add(time.Minute); ; {
		resp, err := http.Post("http://"+addr+chat, "application/json", strings.NewReader(body))
		if err == nil {
			text, e := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK || resp.StatusCode != http.StatusServiceUnavailable {
				if resp.StatusCode != http.StatusOK {
					e = fmt.Errorf("%s: %.200s", resp.Status, text)
				}
				return e
			}
			err = errors.New(resp.Status)
		}
		if check := ctx.Err(); check != nil || time.Now().After(end) {
			return errors.Join(err, check)
		}
		time.Sleep(5 * time.Millisecond) // asking takes time of the engine that loads
	}
}

// hand spawns an engine and returns when it has answered.
func hand(t *testing.T, args []string) *exec.Cmd {
	port := fmt.Sprint(testenv.FreePort(t))
	cmd := exec.Command(args[0], append(slices.Clone(args[1:]), "--host", "127.0.0.1", "--port", port)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Dir = testenv.Root(t) // files are named from there
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := firstByte(net.JoinHostPort("127.0.0.1", port), "any"); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%v: %v\n%s", cmd.Args, err, log.Bytes()[max(0, log.Len()-2000):])
	}
	return cmd
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
}

// cold measures starts and swaps side by side, in turns.
func cold(t *testing.T, rounds int) coldTimes {
	out := coldTimes{start: map[string][]float64{}, swap: map[string][]float64{}}
	file := testenv.Models(t).Gemma
	s := testenv.Start(t, testenv.Spec{Models: "testenv/local/models.yaml"})
	addr := strings.TrimPrefix(s.URL, "http://")
	names := []string{"gemma-3-270m", "gemma-3-270m-twin"}
	unload := func() {
		resp, err := http.Post(s.URL+"/v1/unload", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal("unload: ", resp.Status)
		}
	}
	through := func(model string) {
		if err := firstByte(addr, model); err != nil {
			t.Fatal(err)
		}
	}
	through(names[0])
	same := engineFlags(file, t.TempDir())
	if same == nil {
		t.Fatal("the engine of gateway run is not found")
	}
	commands := map[string][]string{byDefaults: {same[0], "--model", file, "--device", "none"}, bySame: same}
	unload()
	for n := range rounds {
		for i := range coldWays {
			check(t)
			way := coldWays[(i+n)%len(coldWays)]
			took := func(into map[string][]float64, do func()) {
				began := time.Now()
				do()
				into[way] = append(into[way], micros(time.Since(began))/1000)
			}
			if way == byGateway {
				took(out.start, func() { through(names[0]) })
				took(out.swap, func() { through(names[1]) })
				unload()
				continue
			}
			var engine *exec.Cmd
			took(out.start, func() { engine = hand(t, commands[way]) })
			took(out.swap, func() { end(engine); engine = hand(t, commands[way]) })
			end(engine)
		}
		say("cold start and swap, round %d of %d", n+1, rounds)
	}
	return out
}
