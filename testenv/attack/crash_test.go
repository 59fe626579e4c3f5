package attack

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// TestCrashes has one key crash the engine that another key uses. The other's requests are repeated and answered; after
// the second crash the first key is refused constrained output, and nothing else.
func TestCrashes(t *testing.T) {
	endsEngines(t, "--crash-on boom", func(ask func(context.Context) calls.Answer, _ func(int)) {
		refused(t, "the request that crashes the engine", ask(t.Context()), 502)
	})
}

// TestHangs is the same with requests under which the engine hangs, while its health path answers, and whose clients do not
// wait for that.
func TestHangs(t *testing.T) {
	endsEngines(t, "--hang-on boom", func(ask func(context.Context) calls.Answer, open func(int)) {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			ask(ctx)
		}()
		open(3)
		leave()
		<-left
	}, "--first-byte=8s")
}

// endsEngines has requests of one key end an engine twice, by attack, while others are open. attack gets the request, and a
// function that waits until a number of requests is at the engine.
func endsEngines(t *testing.T, engine string, attack func(ask func(context.Context) calls.Answer, open func(int)), args ...string) {
	const chat, bothKey = "/v1/chat/completions", "attack-both-0123456789abcdef0123456789"
	models := calls.Catalogue{"m": "llm, " + calls.Options(engine+" --step")}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: append(args, withKeys(t), "--admin-key="+bothKey)})
	plain := calls.ChatBody("m", 1, false)
	live := `{"model":"m","stream":true,"max_tokens":1,"prompt":"hi"}` // no byte before the first token
	schema := func(name string) string {
		return plain[:len(plain)-1] + `,"response_format":{"type":"json_schema","json_schema":{"name":"` + name + `","schema":{"type":"string"}}}}`
	}
	step := func() {
		t.Helper()
		if a := call(t, "POST", s.URL+"/upstream/m/standin/step", "{}", bearer(bothKey)); a.Err != nil || a.Status >= 300 {
			t.Errorf("step: %v", a)
		}
	}
	stats := func() (open, total int) {
		return statistics(call(t, "GET", s.URL+"/upstream/m/standin/stats", "", bearer(bothKey)).Body)
	}
	open := func(want int) {
		t.Helper()
		kit.Becomes(t, "open requests at the engine", want, func() int { n, _ := stats(); return n })
	}
	ask := func(name string) func(context.Context) calls.Answer {
		return func(ctx context.Context) calls.Answer {
			return callWithin(ctx, t, "POST", s.URL+chat, schema(name), bearer(inferKey))
		}
	}
	abandoned, leave := context.WithCancel(t.Context())
	go ask("fine")(abandoned)
	open(1)
	leave() // nothing comes of a client that leaves an engine that is well
	open(0)
	answers := make(chan calls.Answer)
	for n := range 2 {
		for path, body := range map[string]string{chat: plain, "/v1/completions": live} {
			go func() { answers <- call(t, "POST", s.URL+path, body, bearer(otherKey)) }()
		}
		open(2)
		attack(ask("boom"), open)
		kit.Becomes(t, "requests open at, and made to, the next engine", [2]int{2, 2}, func() [2]int { n, total := stats(); return [2]int{n, total} })
		step()
		step()
		for range 2 {
			if a := <-answers; !a.OK() {
				t.Errorf("attack %d, a request of the other key: %v", n+1, a)
			}
		}
	}
	step()
	step()
	third := ask("fine")(t.Context())
	refused(t, "a constrained request after two attacks", third, 429)
	if third.Code() != "rate_limit_exceeded" || third.RetryAfter() < 1 || third.RetryAfter() > 60 || !strings.Contains(third.Error().Message, "schema") {
		t.Errorf("a constrained request after two attacks: %v", third)
	}
	if a := call(t, "POST", s.URL+chat, plain, bearer(inferKey)); !a.OK() {
		t.Errorf("a plain request of the same key: %v", a)
	}
	if a := call(t, "POST", s.URL+chat, schema("fine"), bearer(otherKey)); !a.OK() {
		t.Errorf("a constrained request of the other key: %v", a)
	}
}

// TestCrashesAmongKeys has one key crash the engine while it has constrained requests of another key as well. That counts
// against neither. Then they take turns, so the second crash tells them apart.
func TestCrashesAmongKeys(t *testing.T) {
	const chat, bothKey = "/v1/chat/completions", "attack-both-0123456789abcdef0123456789"
	models := calls.Catalogue{"m": "llm, " + calls.Options("--crash-on boom --step")}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{withKeys(t), "--admin-key=" + bothKey}})
	ask := func(key, name string) <-chan calls.Answer {
		plain, answer := calls.ChatBody("m", 1, false), make(chan calls.Answer, 1)
		body := plain[:len(plain)-1] + `,"response_format":{"type":"json_schema","json_schema":{"name":"` + name + `","schema":{"type":"string"}}}}`
		go func() { answer <- call(t, "POST", s.URL+chat, body, bearer(key)) }()
		return answer
	}
	step := func() {
		t.Helper()
		if a := call(t, "POST", s.URL+"/upstream/m/standin/step", "{}", bearer(bothKey)); a.Err != nil || a.Status >= 300 {
			t.Errorf("step: %v", a)
		}
	}
	open := func(want int) {
		t.Helper()
		kit.Becomes(t, "open requests at the engine", want, func() int {
			n, _ := statistics(call(t, "GET", s.URL+"/upstream/m/standin/stats", "", bearer(bothKey)).Body)
			return n
		})
	}
	innocent := ask(otherKey, "fine")
	open(1)
	refused(t, "the first attack", <-ask(inferKey, "boom"), 502)
	refused(t, "what was open during the first attack", <-innocent, 502)

	open(0) // at the next engine: a request that reached the dying one would be refused as well
	innocent = ask(otherKey, "fine")
	open(1)
	attack := ask(inferKey, "boom")
	step()
	if a := <-innocent; !a.OK() {
		t.Errorf("what was open before the second attack: %v", a)
	}
	refused(t, "the second attack", <-attack, 502)
	refused(t, "after two attacks", <-ask(inferKey, "fine"), 429)
	open(0)
	innocent = ask(otherKey, "fine")
	open(1)
	step()
	if a := <-innocent; !a.OK() {
		t.Errorf("the other key after two attacks: %v", a)
	}
}

// statistics are the requests that the stand-in's statistics say are open, -1 where there are none, and were made at all.
func statistics(stats []byte) (open, total int) {
	st := struct {
		InFlight int            `json:"in_flight"`
		Calls    map[string]int `json:"calls"`
	}{InFlight: -1}
	_ = json.Unmarshal(stats, &st)
	for _, n := range st.Calls {
		total += n
	}
	return st.InFlight, total
}
