package attack

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// A WebSocket goes through gateway and runner to an engine that has a realtime API, for keys that may infer and pages that may
// use the gateway. It keeps its model busy until it ends.
func TestRealtime(t *testing.T) {
	models := calls.Catalogue{"hear": "audio", "other": "audio", "talk": "llm"}.YAML(calls.LocalHost)
	accessLog := filepath.Join(t.TempDir(), "access.log")
	s := testenv.Start(t, testenv.Spec{Models: models, Args: []string{withKeys(t), "--access-log=" + accessLog, "--cors-origins=" + page, "--max-loaded-models=1"}})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	dial := func(path, key, origin string) (*websocket.Conn, *http.Response, error) {
		h := http.Header{"Authorization": {"Bearer " + key}}
		if origin != "" {
			h.Set("Origin", origin)
		}
		return websocket.Dial(ctx, s.URL+path, &websocket.DialOptions{HTTPHeader: h, Subprotocols: []string{"realtime"}})
	}
	read := func(ws *websocket.Conn) (websocket.MessageType, string) {
		t.Helper()
		kind, data, err := ws.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return kind, string(data)
	}

	for _, c := range []struct {
		path, key, origin string
		status            int
	}{
		{"/v1/realtime?model=hear", "wrong", "", 401},
		{"/v1/realtime?model=hear", manageKey, "", 403},
		{"/v1/realtime?model=hear", inferKey, "https://evil.example", 403},
		{"/v1/realtime?model=nobody", inferKey, "", 404},
		{"/v1/realtime", inferKey, "", 400},
	} {
		if _, resp, err := dial(c.path, c.key, c.origin); err == nil || resp == nil || resp.StatusCode != c.status {
			t.Errorf("%+v: %v, %v", c, resp, err)
		}
	}
	if a := call(t, "GET", s.URL+"/v1/realtime?model=hear", "", bearer(inferKey)); a.Status != 400 || !strings.Contains(string(a.Body), "WebSocket") {
		t.Errorf("no WebSocket: %d %s", a.Status, a.Body)
	}

	ws, resp, err := dial("/v1/realtime?model=hear&intent=transcription&id_slot=1", inferKey, page)
	if err != nil {
		t.Fatal(resp, err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(4 << 20)
	if ws.Subprotocol() != "realtime" || resp.Header.Get("x-model") != "hear" || resp.Header.Get("x-request-id") == "" {
		t.Errorf("%q, %v", ws.Subprotocol(), resp.Header)
	}
	if kind, text := read(ws); kind != websocket.MessageText || !strings.HasSuffix(text, `"query":"intent=transcription&model=hear"}`) {
		t.Errorf("greeting %s", text)
	}
	big := strings.Repeat("sound", 200_000)
	for _, m := range []struct {
		kind websocket.MessageType
		text string
	}{{websocket.MessageText, `{"type":"input_audio_buffer.append"}`}, {websocket.MessageBinary, "\x00\xff\r\n\r\n"}, {websocket.MessageBinary, big}, {websocket.MessageText, ""}} {
		go func() { _ = ws.Write(ctx, m.kind, []byte(m.text)) }()
		if kind, text := read(ws); kind != m.kind || text != m.text {
			t.Errorf("%.40q came back as %v %.40q", m.text, kind, text)
		}
	}

	// Its model is busy, so another one of its type waits.
	if a := call(t, "GET", s.URL+"/v1/health", "", bearer(manageKey)); !strings.Contains(string(a.Body), `"is_busy":true`) {
		t.Errorf("%s", a.Body)
	}
	if a := call(t, "GET", s.URL+"/metrics", "", bearer(inferKey)); !strings.Contains(string(a.Body), "reveille_gateway_requests_open 1\n") {
		t.Error("the WebSocket is no open request")
	}
	waits := call(t, "POST", s.URL+"/v1/load?wait=false", `{"model_name":"other"}`, bearer(manageKey))
	if a := call(t, "GET", s.URL+"/v1/models/other", "", bearer(inferKey)); waits.Status != 202 || strings.Contains(string(a.Body), `"loaded"`) {
		t.Errorf("%d %s", waits.Status, a.Body)
	}
	go func() { _ = ws.Write(ctx, websocket.MessageText, []byte("still here")) }()
	if _, text := read(ws); text != "still here" {
		t.Errorf("%q", text)
	}
	if err := ws.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Errorf("the close is not answered: %v", err)
	}
	next, resp, err := dial("/v1/realtime?model=other", inferKey, "")
	if err != nil {
		t.Fatal(resp, err)
	}
	defer next.CloseNow()
	if _, text := read(next); !strings.Contains(text, `"model":"other"`) {
		t.Errorf("greeting %s", text)
	}
	kit.Becomes(t, "the line of the first WebSocket", true, func() bool {
		log, _ := os.ReadFile(accessLog)
		return strings.Contains(string(log), `"status":101`)
	})
}
