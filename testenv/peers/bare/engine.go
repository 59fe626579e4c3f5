package main

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"time"

	"reveille/testenv/peers"
)

const (
	usage  = `"usage":{"prompt_tokens":200,"completion_tokens":64,"total_tokens":264}`
	plain  = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"one","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],` + usage + `}`
	last   = `data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"one","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	counts = `data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"one","choices":[],` + usage + "}\n\n"
	done   = "data: [DONE]\n\n"

	smallest = 4 << 10 // requests for streams are smaller than this
)

var (
	whole  = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain)
	stream = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
)

// answer serves one connection: one answer to every request, or a stream of max_tokens events where that is asked for,
// with "seed" as the pause between two in ms. Each event has its time in its id.
func answer(c net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, head, length := 0, 0, 0
		for head == 0 {
			m, err := c.Read(buf[n:])
			if n += m; err != nil || n == len(buf) && head == 0 && m == 0 {
				return
			}
			head, length = peers.MessageLength(buf[:n])
		}
		if length <= smallest {
			for n < length {
				m, err := c.Read(buf[n:])
				if n += m; err != nil {
					return
				}
			}
			if body := buf[head:n]; bytes.Contains(body, []byte(`"stream":true`)) {
				if !events(c, body) {
					return
				}
				continue
			}
		}
		for rest := length - n; rest > 0; {
			m, err := c.Read(buf)
			if err != nil {
				return
			}
			rest -= m
		}
		if _, err := c.Write(whole); err != nil {
			return
		}
	}
}

// events sends a stream and reports whether the client stayed.
func events(c net.Conn, body []byte) bool {
	pause := time.Duration(number(body, `"seed":`)) * time.Millisecond
	tokens, counted := number(body, `"max_tokens":`), bytes.Contains(body, []byte(`"include_usage":true`))
	out := append(make([]byte, 0, 1<<10), stream...)
	for i := range tokens {
		if i > 0 && pause > 0 && !alone(c, pause) {
			return false
		}
		out = chunk(out, fmt.Appendf(nil, `data: {"id":"c-%d","object":"chat.completion.chunk","created":1,"model":"one","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}`+"\n\n", time.Now().UnixNano()))
		if _, err := c.Write(out); err != nil {
			return false
		}
		out = out[:0]
	}
	end := last
	if counted {
		end += counts
	}
	_, err := c.Write(append(chunk(out, []byte(end+done)), "0\r\n\r\n"...))
	return err == nil
}

func chunk(out, data []byte) []byte {
	out = append(strconv.AppendInt(out, int64(len(data)), 16), "\r\n"...)
	return append(append(out, data...), "\r\n"...)
}

// alone pauses and reports whether the client stayed.
func alone(c net.Conn, pause time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(pause))
	_, err := c.Read(make([]byte, 1))
	_ = c.SetReadDeadline(time.Time{})
	netErr, ok := err.(net.Error)
	return ok && netErr.Timeout()
}

// number is the one behind a key of a body, 0 without.
func number(body []byte, key string) int {
	n := 0
	if at := bytes.Index(body, []byte(key)); at >= 0 {
		for _, b := range body[at+len(key):] {
			if b < '0' || b > '9' {
				break
			}
			n = 10*n + int(b-'0')
		}
	}
	return n
}
