package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// gateway answers like the real one and keeps what it was asked.
func gateway(t *testing.T, status int, answer string) (Remote, *[]string) {
	t.Helper()
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+strings.TrimSuffix(r.URL.Path+"?"+r.URL.RawQuery, "?")+" "+r.Header.Get("Authorization")+" "+string(body))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(func() { srv.Close(); http.DefaultClient.CloseIdleConnections() })
	return Remote{URL: srv.URL + "/", APIKey: "k", Timeout: time.Minute}, &asked
}

func TestManage(t *testing.T) {
	r, asked := gateway(t, 200, `{"status":"success","message":"Done","unloaded":["a","b"],"load_ms":1234}`)
	var out bytes.Buffer
	for _, run := range []error{
		(&Load{Remote: r, Name: "m", CtxSize: 512, SaveOptions: true}).Run(t.Context(), &out),
		(&Unload{Remote: r, Force: true}).Run(t.Context(), &out),
		(&Pin{Remote: r, Name: "m"}).Run(t.Context(), &out),
		(&Unpin{Remote: r, Name: "m"}).Run(t.Context(), &out),
	} {
		if run != nil {
			t.Fatal(run)
		}
	}
	want := []string{
		`POST /v1/load Bearer k {"ctx_size":512,"model_name":"m","save_options":true}`,
		`POST /v1/unload Bearer k {"force":true}`,
		`POST /v1/internal/pin Bearer k {"model_name":"m","pinned":true}`,
		`POST /v1/internal/pin Bearer k {"model_name":"m","pinned":false}`,
	}
	if strings.Join(*asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked %q", *asked)
	}
	if out.String() != strings.Repeat("Done: a, b (1.2 s)\n", 4) {
		t.Errorf("printed %q", out.String())
	}
	out.Reset()
	for _, run := range []error{
		(&ConversationsForget{Remote: r, Model: "all"}).Run(t.Context(), &out),
		(&ConversationsForget{Remote: r, Model: "a/b"}).Run(t.Context(), &out),
	} {
		if run != nil {
			t.Fatal(run)
		}
	}
	if got := strings.Join((*asked)[len(want):], "\n"); got != "DELETE /v1/internal/conversations Bearer k \nDELETE /v1/internal/conversations/a/b Bearer k " {
		t.Errorf("asked %q", got)
	}
	r.JSON = true
	out.Reset()
	if err := (&Pin{Remote: r, Name: "m"}).Run(t.Context(), &out); err != nil || !json.Valid(out.Bytes()) {
		t.Errorf("%v %s", err, &out)
	}
}

func TestErrorsAreTold(t *testing.T) {
	r, _ := gateway(t, 404, `{"status":"error","message":"x","error":{"message":"The model 'm' does not exist."}}`)
	if err := (&Load{Remote: r, Name: "m"}).Run(t.Context(), io.Discard); err == nil || err.Error() != "The model 'm' does not exist." {
		t.Errorf("%v", err)
	}
	r, _ = gateway(t, 502, "<html>")
	if err := (&PS{Remote: r}).Run(t.Context(), io.Discard); err == nil || err.Error() != "GET /v1/health: status 502" {
		t.Errorf("%v", err)
	}
	r.URL = "http://127.0.0.1:1"
	if err := (&PS{Remote: r}).Run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "no gateway answers at http://127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}

func TestURLs(t *testing.T) {
	r, _ := gateway(t, 404, `{"error":{"message":"heard"}}`)
	address := strings.TrimPrefix(r.URL, "http://")
	for _, url := range []string{r.URL, r.URL + "/", r.URL + "/v1", r.URL + "/v1/", address, address + "/v1"} {
		r.URL = url
		if err := (&PS{Remote: r}).Run(t.Context(), io.Discard); err == nil || err.Error() != "heard" {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestPS(t *testing.T) {
	r, _ := gateway(t, 200, `{"all_models_loaded":[{"model_name":"one","type":"llm","device":"cpu","runner":"here","pid":7,"recipe":"llamacpp","is_busy":true,"pinned":true},
		{"model_name":"split","type":"llm","device":"gpu","runner":"here","plan":{"gpus":[1,3]}}],
		"models_retired":[{"model_name":"one","type":"llm","device":"cpu","runner":"here","pid":5,"recipe":"llamacpp","is_busy":true}],
		"models_loading":[{"model_name":"two","type":"embedding","state":"queued","waiting":3}],"runners":[{"id":"here","state":"ready","devices":"cpu npu",
		"sandbox":{"mode":"auto","on":["files"],"missing":["memory","pids"]},
		"found":{"devices":[{"kind":"cpu","total":34359738368,"source":"system"},{"kind":"gpu","name":"A\nPU \u001b[2J","total":1073741824,"source":"llama-server"},
		{"kind":"gpu","index":1,"name":"A\nPU \u001b[2J","total":1073741824,"source":"llama-server"}],"missing":["npu: device files: none"]}},
		{"id":"pc","state":"ready","devices":"gpu","unproven":true}]}`)
	var out bytes.Buffer
	if err := (&PS{Remote: r}).Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"HOST  STATE                       DEVICES  MODELS  SANDBOX",
		"here  ready                       cpu npu  3       auto, without memory pids",
		"pc    ready, sleep is not proven  gpu      0       ",
		"",
		"HOST  FOUND                                               NOT FOUND",
		"here  cpu 32 GiB; gpu 2 × A PU  [2J 1 GiB (llama-server)  npu: device files: none",
		"pc                                                        ",
		"",
		"MODEL  TYPE       STATE    HOST  DEVICE       RECIPE    PID  USED  NOTE",
		"one    llm        busy     here  cpu          llamacpp  7    -     pinned",
		"split  llm        loaded   here  gpu:1 gpu:3            0    -     ",
		"one    llm        retired  here  cpu          llamacpp  5    -     its entry changed: it finishes its requests",
		"two    embedding  queued                                     -     3 waiting",
		"",
	}, "\n")
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A watch shows the pool again and again, and an error in its place when the gateway has gone.
func TestPSWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		plain.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
			if looks++; looks == 2 {
				return nil, errors.New("connection refused")
			}
			body := io.NopCloser(strings.NewReader(`{"runners":[{"id":"here","state":"ready"}]}`))
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		})
		defer func() { plain.Transport = nil }()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var out bytes.Buffer
		if err := (&PS{Remote: Remote{URL: "http://gateway", Timeout: time.Minute}, Watch: true}).Run(ctx, &out); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); looks != 3 || strings.Count(got, "here  ready") != 2 || strings.Count(got, "refused") != 1 {
			t.Errorf("after %d looks:\n%s", looks, got)
		}
	})
}

// A machine that boots, or failed to, is not trusted with what it says.
func TestPSBoot(t *testing.T) {
	r, _ := gateway(t, 200, `{"runners":[{"id":"a","state":"waking","boot":{"state":"booting"}},
		{"id":"b","state":"asleep","boot":{"state":"failed","reason":"no\n\u001b[2Jengines`+strings.Repeat("x", 500)+`"}}]}`)
	var out bytes.Buffer
	if err := (&PS{Remote: r}).Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if !strings.HasPrefix(lines[1], "a     waking, booting - ") || !strings.HasPrefix(lines[2], "b     asleep, failed -: no  [2Jenginesx") || len(lines[2]) > 260 {
		t.Errorf("got\n%s", &out)
	}
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "models.yaml")
	var out bytes.Buffer
	if err := os.WriteFile(file, []byte("models: {m: {type: llm, recipe: standin, device: cpu}}\nhosts: {here: {driver: local, devices: [cpu]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Check{File: file}).Run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "warning: engine program not found: standin ") || !strings.Contains(out.String(), "--engines-dir") ||
		!strings.HasSuffix(out.String(), "is valid: 1 model, 1 host, 1 warning\n") {
		t.Errorf("%v %s", err, &out)
	}
	out.Reset()
	engines := t.TempDir()
	if err := os.WriteFile(filepath.Join(engines, "standin"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (&Check{File: file, EnginesDir: []string{engines}}).Run(t.Context(), &out); err != nil || !strings.HasSuffix(out.String(), "is valid: 1 model, 1 host, 0 warnings\n") {
		t.Errorf("%v %s", err, &out)
	}
	out.Reset()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Check{File: file}).Run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "no models; for example: models: {") {
		t.Errorf("%v %s", err, &out)
	}
	if err := os.WriteFile(file, []byte("models: {m: {type: nonsense}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Check{File: file}).Run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v", err)
	}
}

// Logs are printed as they come, without what would move a terminal's cursor.
func TestLogs(t *testing.T) {
	r, asked := gateway(t, 200, "[gateway] a\x1b[2J\n[m on h] b")
	var out bytes.Buffer
	if err := (&Logs{Remote: r, Source: []string{"m", "on", "h"}, Follow: true}).Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if err := (&Logs{Remote: r}).Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "\x1b") || strings.Count(got, "[m on h] b") != 2 {
		t.Errorf("printed %q", got)
	}
	if got := strings.Join(*asked, "\n"); got != "GET /logs/stream?source=m+on+h Bearer k \nGET /logs Bearer k " {
		t.Errorf("asked %q", got)
	}
}

// Forgetting says what each host did, and fails while one that is awake has not.
func TestForgetSaysWhatEachHostDid(t *testing.T) {
	for status, fails := range map[string]bool{"success": false, "incomplete": true} {
		r, _ := gateway(t, 200, `{"status":"`+status+`","forgotten":3,"hosts":[{"runner":"a","state":"done","conversations":2,"copies":1,"requests":3},
			{"runner":"b","state":"partly","conversations":1,"copies":2},{"runner":"c","state":"asleep"},{"runner":"d","state":"unreached"}]}`)
		var out bytes.Buffer
		err := (&ConversationsForget{Remote: r, Model: "m"}).Run(t.Context(), &out)
		if errors.Is(err, errNotForgotten) != fails {
			t.Errorf("%s: %v", status, err)
		}
		const want = "a: 2 saved conversations forgotten, 1 loaded copy unloaded after 3 open requests\n" +
			"b: 1 saved conversation forgotten, 2 loaded copies unloaded; some could not be removed, see the runner's log\n" +
			"c: asleep, forgets when it wakes\nd: not reached, forgets when it reads the pool's state\n"
		if out.String() != want {
			t.Errorf("it says %q", &out)
		}
	}
}

// A verbose wake prints what the gateway logs about the host, and nothing of others.
func TestVerboseWake(t *testing.T) {
	waking := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/internal/hosts/pc/wake" {
			close(waking)
			_, _ = io.WriteString(w, `{"status":"success","message":"Host is awake","host":"pc"}`)
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-waking:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "gateway msg=\"magic packet sent\" host=pc to=1.2.3.4:9\ngateway msg=other host=pc-2\ngateway msg=last host=pc\n")
	}))
	t.Cleanup(func() { srv.Close(); http.DefaultClient.CloseIdleConnections() })
	var out bytes.Buffer
	if err := (&Wake{Remote: Remote{URL: srv.URL, Timeout: time.Minute}, Name: "pc", Verbose: true}).Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "pc-2") || !strings.Contains(got, "Host is awake after 0s") {
		t.Errorf("printed %q", got)
	}
}
