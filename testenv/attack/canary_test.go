package attack

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestCanaries sends a prompt and keys that can be recognized through answers, refusals, parse errors, a crash and a
// failed load, and looks for them in logs, metrics, error bodies, engine logs and Redis.
func TestCanaries(t *testing.T) {
	const prompt, wrong = "canary-prompt-6fd1b2", "canary-wrong-key-0123456789abcdef"
	s := testenv.Start(t, testenv.Spec{
		Models: calls.Catalogue{
			"m": "llm", "vector": "embedding",
			"crash": "llm, " + calls.Options("--exit-after=1"),
			"fail":  "llm, " + calls.Options("--fail-load=-1"),
			"junk":  "llm, " + calls.Options("--garbage=framing"),
		}.YAML(calls.LocalHost),
		Args: []string{withKeys(t)},
	})
	told := map[string]string{} // what may hold no canary: name → text
	send := func(path, body string, headers ...string) calls.Answer {
		t.Helper()
		a := call(t, "POST", s.URL+path, body, headers...)
		if a.Err != nil {
			t.Fatalf("%s: %v", path, a)
		}
		if a.Status >= 400 {
			told[fmt.Sprintf("the answer %d to %.60s %.40s", a.Status, path, body)] = fmt.Sprint(a.Header, string(a.Body))
		}
		return a
	}
	chat := func(model, more string) string {
		return `{"model":"` + model + `","max_tokens":4,` + more + `"user":"` + prompt + `","messages":[{"role":"user","content":"` + prompt + `"}]}`
	}
	const path = "/v1/chat/completions"
	for _, body := range []string{chat("m", ""), chat("m", `"stream":true,`)} {
		if a := send(path, body, bearer(inferKey)); !a.OK() {
			t.Errorf("%v", a)
		}
	}
	if a := send("/v1/embeddings", `{"model":"vector","input":"`+prompt+`"}`, bearer(inferKey)); !a.OK() {
		t.Errorf("%v", a)
	}
	for _, model := range []string{"crash", "fail", "junk"} {
		if a := send(path, chat(model, ""), bearer(otherKey)); a.Status < 500 {
			t.Errorf("%s: %v, want a failure", model, a)
		}
	}
	for _, body := range []string{
		chat("m", "")[:40], chat("m", `"`+prompt+`":1,`)[1:], chat("nobody", ""), `{"` + prompt,
	} {
		if a := send(path, body, bearer(inferKey)); a.Status < 400 {
			t.Errorf("%s: %v, want a refusal", body, a)
		}
	}
	for _, headers := range [][]string{
		{bearer(wrong)}, {"X-Api-Key: " + wrong}, {"Authorization: Basic " + wrong}, {"Authorization: " + wrong}, {"Api-Key: " + wrong, "Cookie: " + wrong},
	} {
		refused(t, headers[0], send(path, chat("m", ""), headers...), http.StatusUnauthorized)
	}
	send("/v1/load", `{"model_name":"`+wrong+`"`, bearer(manageKey))
	for _, text := range []string{
		"POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n" + bearer(inferKey) + "\r\n\r\n" + prompt,
		"POST " + path + " HTTP/1.1\r\n" + bearer(wrong) + "\r\nbroken " + prompt + "\r\n\r\n",
		"POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + bearer(otherKey) + "\r\nX-A: " + strings.Repeat(prompt, 3000) + "\r\n\r\n",
		"GET /" + prompt + "?key=" + wrong + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + bearer(inferKey) + "\r\n\r\n",
	} {
		_, body, err := exchange(s.URL, text, limit)
		if err != nil {
			t.Error(err)
		}
		told["the answer to "+text[:60]] = strings.ReplaceAll(string(body), "'/"+prompt+"'", "") // an unknown path is named to who asked for it
	}

	for _, page := range []string{"/metrics", "/logs", "/v1/health", "/stats", "/v1/stats", "/running"} {
		a := call(t, "GET", s.URL+page, "", bearer(manageKey))
		if a.Err != nil {
			t.Errorf("%s: %v", page, a)
		}
		told["the gateway's "+page] = string(a.Body)
	}
	c := s.Redis()
	for key, text := range redisText(t, c) {
		told["Redis' "+key] = key + " " + text
	}
	addr, _, _ := strings.Cut(c.HGet(t.Context(), "rv:{main}:host:local", "addr").Val(), " ")
	if _, _, err := net.SplitHostPort(addr); err != nil {
		t.Errorf("the runner's address in Redis: %q", addr)
	} else if a := call(t, "GET", "http://"+addr+"/metrics", ""); a.Status != http.StatusOK {
		t.Errorf("the runner's metrics: %v", a)
	} else {
		told["the runner's /metrics"] = string(a.Body)
	}
	told["the log"] = s.Log()
	for what, text := range told {
		for _, secret := range []string{prompt, wrong, inferKey, otherKey, manageKey} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %q: %.500s", what, secret, text)
			}
		}
	}
	if len(told["the log"]) == 0 || len(told["the runner's /metrics"]) == 0 || len(told["the gateway's /metrics"]) == 0 || len(told["the gateway's /logs"]) == 0 {
		t.Error("nothing was searched")
	}
}

// redisText returns all that a Redis holds, by key.
func redisText(t *testing.T, c redis.UniversalClient) map[string]string {
	t.Helper()
	ctx, out := t.Context(), map[string]string{}
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("%d keys in Redis: %v", len(keys), err)
	}
	for _, key := range keys {
		var v any
		switch kind := c.Type(ctx, key).Val(); kind {
		case "string":
			v = c.Get(ctx, key).Val()
		case "hash":
			v = c.HGetAll(ctx, key).Val()
		case "zset":
			v = c.ZRange(ctx, key, 0, -1).Val()
		case "set":
			v = c.SMembers(ctx, key).Val()
		case "list":
			v = c.LRange(ctx, key, 0, -1).Val()
		case "stream":
			v = c.XRange(ctx, key, "-", "+").Val()
		case "none": // it has just expired
		default:
			t.Errorf("key %s of type %s", key, kind)
		}
		out[key] = fmt.Sprint(v)
	}
	return out
}
