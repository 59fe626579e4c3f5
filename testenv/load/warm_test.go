package load

import (
	"bytes"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
)

const standins = `
models:
  one: {type: llm, recipe: standin, device: cpu}
hosts:
  local: {driver: local, devices: [cpu]}
`

// request is a chat request with a body of about 1 KB.
func request(extra string) []byte {
	return []byte(`{"model":"one","messages":[{"role":"user","content":"` + strings.Repeat("word ", 190) + `"}],"max_tokens":1` + extra + `}`)
}

// engine starts the stand-in engine by hand and returns its chat route.
func engine(b *testing.B) string {
	b.Helper()
	port := fmt.Sprint(testenv.FreePort(b))
	cmd := exec.Command(testenv.Standin(b), "--host", "127.0.0.1", "--port", port)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	base := "http://127.0.0.1:" + port
	await(b, base)
	return base + "/v1/chat/completions"
}

// await waits until an engine is healthy.
func await(b *testing.B, base string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		resp, err := http.Get(base + "/health")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
	}
	b.Fatal("the engine is not ready after a minute")
}

// gateway runs the stack on the stand-in engine, its model loaded, and returns its chat route.
func gateway(b *testing.B) string {
	b.Helper()
	url := testenv.Start(b, testenv.Spec{Models: standins}).URL + "/v1/chat/completions"
	if _, err := firstByte(url, `{"model":"one","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`); err != nil {
		b.Fatal(err)
	}
	return url
}

func BenchmarkWarm(b *testing.B) { hops(b, request("")) }

// BenchmarkUpload is BenchmarkWarm with a body of 1 MB, a photo's size.
func BenchmarkUpload(b *testing.B) {
	hops(b, bytes.Replace(request(""), []byte("word "), bytes.Repeat([]byte("word "), 200_000), 1))
}
func BenchmarkStream(b *testing.B) {
	hops(b, []byte(`{"model":"one","messages":[{"role":"user","content":"hello"}],"max_tokens":64,"stream":true}`))
}

// hops compares the engine asked directly with the same through gateway and runner.
func hops(b *testing.B, body []byte) {
	direct, through := engine(b), gateway(b)
	for _, conns := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("direct/conns=%d", conns), func(b *testing.B) { drive(b, conns, direct, body) })
		b.Run(fmt.Sprintf("gateway/conns=%d", conns), func(b *testing.B) { drive(b, conns, through, body) })
	}
}
