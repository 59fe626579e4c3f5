package load

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"reveille/testenv"
)

const question = `{"model":"%s","messages":[{"role":"user","content":"Say hello"}],"max_tokens":1,"temperature":0,"stream":true}`

// BenchmarkCold compares spawning llama-server by hand, asking it as soon as it is healthy, with one request for a cold
// model through the gateway. The page cache is warm in both.
func BenchmarkCold(b *testing.B) {
	bin, model := testenv.Engines(b).LlamaServer, testenv.Models(b).Gemma
	b.Run("by-hand", func(b *testing.B) {
		for b.Loop() {
			cmd := byHand(b, bin, model, testenv.FreePort(b))
			b.StopTimer()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			b.StartTimer()
		}
		millis(b)
	})
	b.Run("gateway", func(b *testing.B) {
		sys := testenv.Start(b, testenv.Spec{Models: "testenv/local/models.yaml"})
		for b.Loop() {
			ask(b, sys.URL, "gemma-3-270m")
			b.StopTimer()
			unload(b, sys.URL)
			b.StartTimer()
		}
		millis(b)
	})
}

// BenchmarkSwap lets two models of one slot take turns: stop, spawn, first byte.
func BenchmarkSwap(b *testing.B) {
	bin, model := testenv.Engines(b).LlamaServer, testenv.Models(b).Gemma
	b.Run("by-hand", func(b *testing.B) {
		running := byHand(b, bin, model, testenv.FreePort(b))
		for b.Loop() {
			_ = running.Process.Signal(syscall.SIGTERM)
			_ = running.Wait()
			running = byHand(b, bin, model, testenv.FreePort(b))
		}
		millis(b)
		_ = running.Process.Kill()
		_ = running.Wait()
	})
	b.Run("gateway", func(b *testing.B) {
		sys := testenv.Start(b, testenv.Spec{Models: "testenv/local/models.yaml"})
		names := []string{"gemma-3-270m", "gemma-3-270m-twin"}
		ask(b, sys.URL, names[1])
		for i := 0; b.Loop(); i++ {
			ask(b, sys.URL, names[i%2])
		}
		millis(b)
	})
}

// millis reports the mean in ms.
func millis(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/first-byte")
	b.ReportMetric(0, "ns/op")
}

// byHand spawns llama-server with the flags that the runner gives it and returns when it has answered its first byte.
func byHand(b *testing.B, bin, model string, port int) *exec.Cmd {
	b.Helper()
	cmd := exec.Command(bin, "--model", model, "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--jinja", "--device", "none", "--ctx-size", "4096", "-np", "4")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	await(b, base)
	ask(b, base, "any")
	return cmd
}

func ask(b *testing.B, base, model string) {
	b.Helper()
	if _, err := firstByte(base+"/v1/chat/completions", fmt.Sprintf(question, model)); err != nil {
		b.Fatal(err)
	}
}

func unload(b *testing.B, base string) {
	b.Helper()
	resp, err := http.Post(base+"/v1/unload", "application/json", strings.NewReader("{}"))
	if err != nil {
		b.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b.Fatal("unload: ", resp.Status)
	}
}
