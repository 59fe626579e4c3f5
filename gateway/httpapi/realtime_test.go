package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

const handshake = "GET /v1/realtime?model=chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

// An engine without a realtime API, or one that accepts another handshake, is said to have none.
func TestRealtimeWithoutAnEngine(t *testing.T) {
	for name, serve := range map[string]http.HandlerFunc{
		"no route": http.NotFound,
		"FastAPI's no route": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
		},
		"another response": answering("{}"),
		"another handshake": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h["Connection"], h["Upgrade"], h["Sec-Websocket-Accept"] = []string{"Upgrade"}, []string{"websocket"}, []string{"x"}
			w.WriteHeader(http.StatusSwitchingProtocols)
		},
	} {
		s := newStage(t).warm("chat").serve(serve)
		if r := s.dial().say(handshake + "\r\n"); r.status != 501 || !strings.Contains(r.text, "has no realtime API") {
			t.Errorf("%s: %d %s", name, r.status, r.text)
		}
	}
	limits := keyed(t, "tokens=9/m").warm("chat").serve(http.NotFound)
	for key, status := range map[string]int{ann: 403, bob: 501} {
		if r := limits.dial().say(handshake + key + "\r\n\r\n"); r.status != status {
			t.Errorf("%s: %d %s", key, r.status, r.text)
		}
	}
	s := newStage(t).warm("chat")
	for _, other := range []string{
		strings.Replace(handshake, "13", "12", 1), strings.Replace(handshake, "dGhl", "a", 1), strings.Replace(handshake, "Connection: Upgrade\r\n", "", 1),
		strings.Replace(handshake, "websocket", "h2c", 1),
	} {
		if r := s.dial().say(other + "\r\n"); r.status != 400 {
			t.Errorf("%q: %d %s", other, r.status, r.text)
		}
	}
}
