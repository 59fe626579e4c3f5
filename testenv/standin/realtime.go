package main

import (
	"net/http"

	"github.com/coder/websocket"
)

// realtime is GET /v1/realtime: a WebSocket that names its model and then sends back what it gets, message by message.
func (s *server) realtime(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"realtime"}})
	if err != nil {
		return // Accept has answered
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxBody)
	s.stats.begin("realtime")
	defer s.stats.end(false)
	greeting := `{"type":"session.created","model":"` + s.cfg.Alias + `","query":"` + r.URL.RawQuery + `"}`
	if ws.Write(r.Context(), websocket.MessageText, []byte(greeting)) != nil {
		return
	}
	for {
		kind, data, err := ws.Read(r.Context())
		if err != nil || ws.Write(r.Context(), kind, data) != nil {
			return
		}
	}
}
