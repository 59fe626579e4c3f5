package sleep

import (
	"sync"
	"testing"

	"reveille/testenv/kit"
)

const twoHosts = `
models:
  m: {type: llm, recipe: standin, device: cpu, replicas: {max: 2}, options: {args: "--token-delay 1s"}}
hosts:
  h0: {driver: local, devices: [cpu]}
  h1: {driver: local, devices: [cpu]}
`

// While more requests wait for a model than its copy serves in two seconds (each takes four), a second copy is loaded on another host, and requests are spread
// over both; no request fails for it.
func TestFurtherCopyUnderLoad(t *testing.T) {
	t.Parallel()
	s, rdb, told := system(t, twoHosts, "--idle=1h", "--host-idle=1h", "--runner-addr=127.0.0.1:0")
	c := client(t)
	first := use(t, c, s.URL, "m", false).Header.Get("X-Runner")
	second := map[string]string{"h0": "h1", "h1": "h0"}[first]
	if second == "" {
		t.Fatalf("the first copy is on %q", first)
	}

	var mu sync.Mutex
	served := map[string]int{}
	both := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return served[first] > 0 && served[second] > 0
	}
	var crowd sync.WaitGroup
	done := make(chan struct{})
	for range 8 { // clients, each with a request after the other
		crowd.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a := chat(t.Context(), c, s.URL, "m", true)
				if !a.OK() {
					t.Error(a)
					return
				}
				mu.Lock()
				served[a.Header.Get("X-Runner")]++
				mu.Unlock()
			}
		})
	}
	kit.Eventually(t, "both copies serve", both)
	close(done)
	crowd.Wait()
	for _, host := range []string{"h0", "h1"} {
		if got := rdb.HGet(t.Context(), "rv:{main}:model:"+host+":m", "state").Val(); got != "loaded" {
			t.Errorf("the model is %q on %s", got, host)
		}
	}
	if n := told.count("model m loading"); n != 2 {
		t.Errorf("%d loads, want 2", n)
	}
}
