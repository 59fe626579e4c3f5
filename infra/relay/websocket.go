package relay

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// WebSocket is the protocol of Request.Upgrade for WebSockets (RFC 6455).
const WebSocket = "websocket"

// webSocketFields are the fields of a handshake that are passed on. Without Sec-WebSocket-Extensions no extension is
// used, so engines decompress nothing.
var webSocketFields = [...]string{"Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol"}

// IsWebSocketHandshake reports whether a request is a valid WebSocket handshake.
func IsWebSocketHandshake(h *fasthttp.RequestHeader) bool {
	key, err := base64.StdEncoding.DecodeString(string(h.Peek(webSocketFields[0])))
	return h.IsGet() && h.ConnectionUpgrade() && bytes.EqualFold(h.Peek("Upgrade"), []byte(WebSocket)) &&
		err == nil && len(key) == 16 && string(h.Peek(webSocketFields[1])) == "13"
}

// AddWebSocket turns r into a WebSocket handshake with the client's fields.
func (r *Request) AddWebSocket(h *fasthttp.RequestHeader) {
	r.Upgrade = WebSocket
	for _, name := range webSocketFields {
		if v := h.Peek(name); len(v) > 0 {
			r.Add(name, v)
		}
	}
}

// AcceptsWebSocket reports whether a response accepts the handshake in h.
func (r *Response) AcceptsWebSocket(h *fasthttp.RequestHeader) bool {
	return r.Switched() && string(r.Header("Sec-WebSocket-Accept")) == acceptKey(h.Peek(webSocketFields[0]))
}

func acceptKey(key []byte) string {
	sum := sha1.Sum(append(bytes.Clone(key), "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// SwitchTo has fasthttp answer ctx with 101 and the fields in more after the handler, and then tunnel between the client
// and the upstream. The response must satisfy AcceptsWebSocket. At the end it is closed and onEnd is called with the
// tunnel's error, on another goroutine.
func (r *Response) SwitchTo(ctx *fasthttp.RequestCtx, more []Field, idle time.Duration, onEnd func(error)) {
	head := append([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "), acceptKey(ctx.Request.Header.Peek(webSocketFields[0]))...)
	if v := r.Header(webSocketFields[2]); len(v) > 0 && isValue(v) {
		more = append(more, Field{webSocketFields[2], v})
	}
	for _, f := range more {
		head = append(append(append(append(head, "\r\n"...), f.Name...), ": "...), f.Value...)
	}
	head = append(head, "\r\n\r\n"...)
	ctx.HijackSetNoResponse(true) // fasthttp calls the handler even if the client has left
	ctx.Hijack(func(client net.Conn) {
		err := client.SetWriteDeadline(time.Now().Add(tunnelWrite))
		if err == nil {
			_, err = client.Write(head)
		}
		if err == nil {
			err = r.Tunnel(client, idle)
		} else {
			err = nil // the client left
		}
		_ = r.Close()
		onEnd(err)
	})
}
