package system

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/lambda"
)

const (
	lambdaSecret = "lambda-lambda-lambda-lambda-lamb"
	lambdaKey    = "a-key-for-the-tests"
)

// function is a gateway in Lambda behind its URL, and a runner in the network that both see.
type function struct {
	*lambda.Function
	world
}

// startFunction starts Redis, a runner, an AWS with what terraform puts there, and the gateway's function with the settings
// that terraform gives it.
func startFunction(t *testing.T, models catalogue, timeout time.Duration) *function {
	t.Helper()
	server := testenv.StartRedis(t)
	url := "redis://" + server.Addr + "/0"
	_, addr := testenv.StartRunner(t, url, lambdaSecret, "local", t.TempDir(), "--devices=cpu")
	cloud := aws.Start(t, 0)
	text, _, _ := strings.Cut(models.yaml(), "hosts:")
	cloud.PutObject("models", "config/models.yaml", text+"hosts:\n  local: {driver: exec, address: \""+addr+"\", devices: [cpu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n")
	cloud.PutSecret("dev/api-keys", lambdaKey+" infer,manage\n")
	cloud.PutSecret("dev/runner-secret", lambdaSecret)
	f := lambda.Start(t, lambda.Spec{
		Name: "gateway", Binary: testenv.Build(t, "gateway"), Timeout: timeout,
		Env: []string{
			"REVEILLE_API_KEYS_SECRET=dev/api-keys", "REVEILLE_RUNNER_SECRET_NAME=dev/runner-secret", "REVEILLE_MODELS=s3://models/config/models.yaml",
			"REVEILLE_REDIS_URL=" + url, "REVEILLE_COMMIT_AFTER=100ms", "REVEILLE_LOG_LEVEL=debug",
			"AWS_ENDPOINT_URL=" + cloud.URL, "AWS_REGION=" + aws.Region, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true",
		},
	})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return &function{Function: f, world: world{t: t, rdb: rdb, types: models.types()}}
}

// post asks the function URL. It keeps no connection: every request is an event of its own.
func (f *function) post(ctx context.Context, model string, tokens int, stream bool) (*http.Response, error) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+"/v1/chat/completions", strings.NewReader(calls.ChatBody(model, tokens, stream)))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+lambdaKey)
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
}

// ask asks a model without a stream and reads the answer.
func (f *function) ask(model string) answer {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*kit.Patience)
	defer cancel()
	resp, err := f.post(ctx, model, 2, false)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: body, err: err}
}

// chat opens a stream and returns when the model has begun to answer, which it does with the role alone.
func (f *function) chat(model string, tokens int) *stream {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 4*kit.Patience)
	f.t.Cleanup(cancel)
	resp, err := f.post(ctx, model, tokens, true)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	s := &stream{t: f.t, resp: resp, lines: bufio.NewReader(resp.Body), cancel: cancel}
	if e := f.event(s); !strings.Contains(e, `"role":"assistant"`) {
		f.t.Fatalf("%s: %s begins with %q", model, resp.Status, e)
	}
	return s
}

// event is the next event of a stream, comments left out.
func (f *function) event(s *stream) string {
	f.t.Helper()
	for {
		e, err := s.next()
		if err != nil {
			f.t.Fatal(err)
		}
		if !strings.HasPrefix(e, ":") {
			return e
		}
	}
}

// TestLambda: the gateway as terraform's gateway_mode "lambda" runs it. One function, each step goes on from the one before.
func TestLambda(t *testing.T) {
	t.Parallel()
	f := startFunction(t, catalogue{"a": "llm, " + calls.Options("--step"), "b": "llm"}, time.Minute)

	t.Run("keys", func(t *testing.T) {
		for key, want := range map[string]int{"": http.StatusUnauthorized, "another": http.StatusUnauthorized, lambdaKey: http.StatusOK} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+"/v1/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			if a := do(req); a.status != want {
				t.Errorf("key %q: %v", key, a)
			}
		}
	})
	t.Run("stream_event_by_event", func(t *testing.T) {
		s := f.chat("a", 3) // it loads the model
		var before int64    // the answer's end, which follows its last token by itself
		for range 3 {       // no token is made before the one before it was received
			before = f.rdb.Time(t.Context()).Val().UnixMilli()
			f.step("a")
			if e := f.event(s); !strings.Contains(e, `"content":"`) {
				t.Fatal(e)
			}
		}
		s.whole()
		if used := f.field("a", "used_ms"); used < fmt.Sprint(before) {
			t.Errorf("the answer has ended and its use is not told: used_ms %s, it ended after %d", used, before)
		}
	})
	t.Run("swap_without_a_stream", func(t *testing.T) {
		if a := f.ask("b"); a.err != nil || a.status != http.StatusOK || a.header.Get("x-evicted") != "a" || a.header.Get("Content-Type") != "application/json; charset=utf-8" {
			t.Errorf("%v %v", a, a.header)
		}
	})
	t.Run("connections_that_ended_in_the_freeze", func(t *testing.T) {
		for _, kind := range []string{"normal", "pubsub"} {
			if err := f.rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes").Err(); err != nil {
				t.Fatal(err)
			}
		}
		if a := f.ask("b"); a.err != nil || a.status != http.StatusOK {
			t.Error(a)
		}
	})
	t.Run("engine_dies", func(t *testing.T) {
		s := f.chat("a", 3)
		if err := syscall.Kill(f.pid("a"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		endsWithError(t, s, "engine_crashed")
	})
	t.Run("client_gone", func(t *testing.T) {
		kit.Becomes(t, "record of a", "", func() string { return f.field("a", "state") })
		f.chat("a", 2).leave()
		f.step("a")
		f.step("a") // the answer is made to its end
		kit.Becomes(t, "busy environments", 0, f.Busy)
		if n := f.stats("a").Cancelled; n != 0 {
			t.Errorf("%d calls were cancelled: Lambda tells of no client that left", n)
		}
	})
	if n := f.Environments(); n != 1 {
		t.Errorf("%d environments for one request after the other", n)
	}
	t.Run("two_at_once", func(t *testing.T) {
		first, second := f.chat("a", 1), f.chat("a", 1)
		f.step("a")
		f.step("a")
		first.whole()
		second.whole()
		if n := f.Environments(); n != 2 {
			t.Errorf("%d environments for two requests at once", n)
		}
	})
	if got := f.Failures(); len(got) > 0 {
		t.Errorf("failures: %v", got)
	}
}

// TestLambdaTimeIsOver: before Lambda ends the process, the gateway ends the answer.
func TestLambdaTimeIsOver(t *testing.T) {
	t.Parallel()
	f := startFunction(t, catalogue{"a": "llm, " + calls.Options("--step")}, 12*time.Second)
	resp, err := f.post(t.Context(), "a", 3, true)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s := &stream{t: t, resp: resp, lines: bufio.NewReader(resp.Body)}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		endsWithError(t, s, "upstream_timeout")
	} else if resp.StatusCode != http.StatusGatewayTimeout { // on a slow machine the time was over before the stream began
		t.Error(resp.Status)
	}
	if got := f.Failures(); len(got) > 0 {
		t.Errorf("failures: %v", got)
	}
}
