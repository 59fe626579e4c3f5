package system

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// Three gateways on one Redis accept a key that was added at one of them, let in what its limit says within 5 %, keep it
// to its models, count its tokens, and refuse it soon after it was revoked.
func TestKeysOfAPool(t *testing.T) {
	t.Parallel()
	redis := "redis://" + testenv.Redis(t) + "/0?" + testenv.PatientCalls
	const secret, admin = "keys-of-a-pool-0123456789abcdef-secret", "admin-key-of-the-pool-0123456789"
	models := "models:\n  m: {type: llm, recipe: standin, device: cpu}\n  other: {type: llm, recipe: standin, device: cpu}\n"
	var urls []string
	for range 3 {
		urls = append(urls, testenv.StartGateway(t, redis, secret, models, "--admin-key="+admin).URL)
	}
	testenv.StartRunner(t, redis, secret, "one", t.TempDir(), "--devices=cpu")
	client := calls.Client(t, 16)
	ask := func(url, key, model string) calls.Answer {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", strings.NewReader(calls.ChatBody(model, 4, false)))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		return calls.Do(client, req, err)
	}
	type listed struct {
		Key, ID, Grant, Name string
		Revoked              bool
	}
	command := func(v any, args ...string) {
		t.Helper()
		args = append([]string{"key"}, args...)
		out, err := exec.CommandContext(t.Context(), testenv.Build(t, "gateway"), append(args, "--url="+urls[0], "--api-key="+admin, "--json")...).CombinedOutput()
		if err != nil || json.Unmarshal(out, v) != nil {
			t.Fatalf("gateway %q: %v: %s", args, err, out)
		}
	}
	add := func(args ...string) (k listed) {
		t.Helper()
		command(&k, append([]string{"add"}, args...)...)
		for _, url := range urls {
			kit.Becomes(t, "a new key at "+url, true, func() bool { return ask(url, k.Key, "absent").Status == http.StatusNotFound })
		}
		return k
	}
	for _, url := range urls {
		kit.Becomes(t, "the model answers at "+url, true, func() bool { return ask(url, admin, "m").OK() })
	}

	ada := add("--requests=150/m", "--tokens=1000000/m", "--models=m*", "Ada L")
	if got := ask(urls[1], ada.Key, "other"); got.Status != http.StatusForbidden || got.Code() != "insufficient_scope" {
		t.Errorf("a model that is not the key's: %v", got)
	}
	time.Sleep(5 * time.Second) // the gateways learn of each other with their batches of use, and share the limits from then on
	var n, high, odd atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for _, url := range urls {
		for range 2 {
			wg.Go(func() {
				for time.Since(began) < 4*time.Second || n.Load() < 140 && time.Since(began) < time.Minute {
					got := ask(url, ada.Key, "m")
					switch {
					case got.OK():
						n.Add(1)
					case got.Status != http.StatusTooManyRequests || got.RetryAfter() < 1:
						odd.Add(1)
						t.Log(got)
					}
					if left, err := strconv.Atoi(got.Header.Get("x-ratelimit-remaining-requests")); err != nil || got.Header.Get("x-ratelimit-limit-requests") != "150" {
						odd.Add(1)
						t.Log(got.Header)
					} else {
						high.Store(max(high.Load(), int64(left)))
					}
				}
			})
		}
	}
	wg.Wait()
	want := 150 + 2.5*time.Since(began).Seconds()
	if got := float64(n.Load()); got > 1.05*want || got < 0.95*want || odd.Load() > 0 || high.Load() > 149 {
		t.Errorf("%.0f requests, want %.0f; %d odd answers; %d remaining", got, want, odd.Load(), high.Load())
	}
	t.Logf("%d requests in %v, want %.0f", n.Load(), time.Since(began), want)

	bob := add("--tokens=20/h", "Bob")
	used := 0
	for range 100 {
		if got := ask(urls[used%3], bob.Key, "m"); got.Status == http.StatusTooManyRequests {
			break
		}
		used++
		time.Sleep(200 * time.Millisecond) // each response is charged when it ends
	}
	if used == 0 || used > 20 {
		t.Errorf("20 tokens were good for %d requests", used)
	}
	got := ask(urls[used%3], bob.Key, "m")
	if got.Status != http.StatusTooManyRequests || got.Header.Get("x-ratelimit-remaining-tokens") != "0" {
		t.Errorf("after its tokens: %v %v", got, got.Header)
	}

	var list struct{ Keys []listed }
	if command(&list, "list"); len(list.Keys) != 2 || list.Keys[0].Name != "Ada L" || list.Keys[0].ID != ada.ID {
		t.Errorf("%+v", list)
	}
	var revoked listed
	if command(&revoked, "revoke", "Ada L"); !revoked.Revoked || revoked.ID != ada.ID {
		t.Errorf("%+v", revoked)
	}
	since := time.Now()
	for _, url := range urls {
		kit.Becomes(t, "a revoked key at "+url, http.StatusUnauthorized, func() int { return ask(url, ada.Key, "m").Status })
	}
	t.Logf("revoked at three gateways in %v", time.Since(since))
}
