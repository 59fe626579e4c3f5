package attack

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestLargeConversations: a key that has a large conversation stored and names it in many small requests takes neither the
// pool's state from others, nor more of the gateway's memory than bodies may hold.
func TestLargeConversations(t *testing.T) {
	models := calls.Catalogue{"m": "llm", "slow": "llm, " + calls.Options("--step")}
	s := testenv.Start(t, testenv.Spec{
		Models: models.YAML(calls.LocalHost),
		Args:   []string{withKeys(t), "--admin-key=" + adminKey, "--max-loaded-models=2", "--store-responses=1h", "--max-held=64MiB"},
	})
	store := func(key, input string) string {
		t.Helper()
		a := call(t, "POST", s.URL+"/v1/responses", `{"model":"m","input":"`+input+`","max_output_tokens":1}`, bearer(key))
		var made struct {
			ID    string
			Store bool
		}
		if err := json.Unmarshal(a.Body, &made); err != nil || !a.OK() || !made.Store {
			t.Fatal("not stored:", a)
		}
		return made.ID
	}
	var words strings.Builder
	for words.Len() < 7<<20 {
		words.WriteString(rand.Text() + " ")
	}
	large, small := store(inferKey, words.String()), store(otherKey, "hi")
	wrong := fmt.Sprintf(`{"model":"m","input":"x","previous_response_id":%q,"max_output_tokens":-7}`, large)
	var wg sync.WaitGroup
	over := make(chan struct{})
	for range 16 {
		wg.Go(func() {
			for range 3 {
				if a := call(t, "POST", s.URL+"/v1/responses", wrong, bearer(inferKey)); a.Status != 400 && a.Code() != "overloaded" {
					t.Error("a request that continues a large conversation:", a)
				}
			}
		})
	}
	go func() { wg.Wait(); close(over) }()
	for busy := true; busy; {
		select {
		case <-over:
			busy = false
		default:
		}
		for path, key := range map[string]string{"/ready": inferKey, "/v1/responses/" + small: otherKey} {
			if a := call(t, "GET", s.URL+path, "", bearer(key)); !a.OK() {
				t.Fatal("meanwhile", path, a)
			}
		}
	}

	// 14 MiB for each that waits at an engine: four fit.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	const many = 12
	answers := make(chan string, many)
	before := memory(t, s.PID(), "VmHWM:")
	for range many {
		go func() {
			answers <- callWithin(ctx, t, "POST", s.URL+"/v1/responses", strings.NewReplacer(`"m"`, `"slow"`, "-7", "9").Replace(wrong), bearer(inferKey)).Code()
		}()
	}
	for i := range many - 4 {
		if code := <-answers; code != "overloaded" {
			t.Errorf("request %d of %d at once: %q", i, many, code)
		}
	}
	t.Logf("%d MiB more at most", (memory(t, s.PID(), "VmHWM:")-before)>>20)
}
