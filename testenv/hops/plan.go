package hops

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Plan is what one seed asks of an engine: which answer, and how it is sent.
type Plan struct {
	Path   string // of the request at the engine
	Stream bool   // the response is an event stream
	Text   string // of the request, as JSON has it
	Body   []byte // of the response
	Wire   []byte // the response with its head, as far as it is sent
	Whole  bool   // Wire is all of it
	Closes bool   // the engine closes the connection after Wire
	Says   bool   // it announces that
	Resets bool   // it does so by a reset
	Hangs  bool   // it sends nothing more after Wire, and waits until the other end closes
	Early  bool   // it answers before it has read the request's body
	Slow   bool   // it reads that body slowly
}

// SeedIn finds the seed in the start of a request's body.
func SeedIn(b []byte) (seed uint64, ok bool) {
	_, rest, ok := bytes.Cut(b, []byte(`"seed":`))
	if ok {
		_, err := fmt.Sscanf(string(rest), "%d,", &seed)
		ok = err == nil
	}
	return seed, ok
}

// Paths of an engine.
const (
	ChatPath = "/v1/chat/completions"
	BlobPath = "/blob" // a response of any bytes
)

// Random is a source for one seed and one use of it.
func Random(seed, use uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, use)) }

// size prefers small sizes and those at the limits of buffers.
func size(r *rand.Rand) int {
	switch r.IntN(60) {
	case 0:
		return r.IntN(1 + r.IntN(1<<20))
	case 1, 2:
		return 64<<10 - 300 + r.IntN(600)
	case 3, 4, 5, 6:
		return 4<<10 - 300 + r.IntN(600)
	case 7, 8, 9:
		return 16<<10 - 300 + r.IntN(600)
	case 10:
		return 0
	case 11:
		return 512<<10 - 300 + r.IntN(600)
	}
	return 1 + r.IntN(3000)
}

// words are pieces of a JSON text: runes of all lengths, escapes, and what looks like framing.
var words = []string{"a", "word ", "é", "漢", "😀", `\n`, `\"`, `\\`, `\u00e9`, "0", "data: ", "[DONE]", `\r\n\r\n`, "{", "}", "]", "HTTP/1.1 200 OK", `\"usage\":{`}

func text(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.String()
}

// PlanOf is the plan of a seed. Clients that will leave ask for a response that hangs.
func PlanOf(seed uint64) Plan {
	r := Random(seed, 1)
	p := Plan{Path: ChatPath, Stream: r.IntN(2) == 0, Text: text(r, size(r)), Whole: true}
	kind := "application/json"
	switch {
	case r.IntN(5) == 0:
		p.Path, p.Stream, kind = BlobPath, false, "application/octet-stream"
		p.Body = make([]byte, size(r))
		for i := range p.Body {
			p.Body[i] = byte(r.Uint32())
		}
	case p.Stream:
		kind, p.Body = "text/event-stream", events(r)
	default:
		p.Body = fmt.Appendf(nil, `{"id":"chatcmpl-%d","object":"chat.completion","created":1,"model":"one","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`, seed, text(r, size(r)))
	}
	p.Closes, p.Says = r.IntN(12) == 0, r.IntN(2) == 0
	wire, bounded := p.frame(r, kind)
	p.Wire = wire
	switch r.IntN(16) {
	case 0: // breaks off
		// Of a body that only the connection's end bounds, nothing but a reset reports that it is not all: what ends early is
		// nonsense, of which runners take two a minute before they restart an engine.
		p.Whole, p.Closes, p.Resets = false, true, r.IntN(3) == 0 || !bounded
	case 1:
		p.Whole, p.Hangs = false, true
	}
	if !p.Whole {
		p.Wire = p.Wire[:r.IntN(len(p.Wire))]
	}
	p.Early, p.Slow = r.IntN(40) == 0, r.IntN(20) == 0
	return p
}

// events is the body of a stream.
func events(r *rand.Rand) []byte {
	var b bytes.Buffer
	end := "\n\n"
	if r.IntN(8) == 0 {
		end = "\r\n\r\n"
	}
	for i := range r.IntN(40) {
		fmt.Fprintf(&b, `data: {"id":"c-%d","object":"chat.completion.chunk","created":1,"model":"one","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}%s`, i, text(r, size(r)/8), end)
	}
	fmt.Fprintf(&b, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"one","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}%s`, end)
	b.WriteString("data: [DONE]" + end)
	return b.Bytes()
}

// frame writes the head and the body with a length, in chunks, or until the connection's end, which is not bounded.
func (p *Plan) frame(r *rand.Rand, kind string) (wire []byte, bounded bool) {
	var b bytes.Buffer
	for range r.IntN(8) / 6 {
		b.WriteString("HTTP/1.1 100 Continue\r\n\r\n")
	}
	name := func(s string) string {
		switch r.IntN(4) {
		case 0:
			return strings.ToLower(s)
		case 1:
			return strings.ToUpper(s)
		}
		return s
	}
	fmt.Fprintf(&b, "HTTP/1.1 200 Text\r\n%s: %s\r\n%s: %s\r\n", name("Content-Type"), kind, name("Server"), strings.Repeat("s", r.IntN(300)))
	framing := r.IntN(8)
	if framing == 0 {
		p.Closes, p.Says = true, true
	}
	if p.Closes && p.Says {
		fmt.Fprintf(&b, "%s: close\r\n", name("Connection"))
	}
	switch {
	case framing == 0:
		b.WriteString("\r\n")
		b.Write(p.Body)
	case framing < 4 && !p.Stream:
		fmt.Fprintf(&b, "%s: %d\r\n\r\n", name("Content-Length"), len(p.Body))
		b.Write(p.Body)
	default:
		fmt.Fprintf(&b, "%s: chunked\r\n\r\n", name("Transfer-Encoding"))
		Chunks(&b, r, p.Body)
	}
	return b.Bytes(), framing != 0
}

// Chunks writes a body in chunks of random sizes, some with extensions, and their end.
func Chunks(b *bytes.Buffer, r *rand.Rand, body []byte) {
	most := 1 + r.IntN(1+r.IntN(20000))
	most = max(most, len(body)/200)
	for len(body) > 0 {
		n := min(len(body), 1+r.IntN(most))
		ext := ""
		if r.IntN(10) == 0 {
			ext = ";a=b"
		}
		fmt.Fprintf(b, []string{"%x%s\r\n", "%X%s\r\n", "0%x%s\r\n"}[r.IntN(3)], n, ext)
		b.Write(body[:n])
		b.WriteString("\r\n")
		body = body[n:]
	}
	b.WriteString("0\r\n\r\n")
}

// Pieces calls send with b in pieces of random sizes, and pauses between some of them, for 60 ms in all at most.
func Pieces(r *rand.Rand, b []byte, send func([]byte) error) error {
	most, left := len(b)+1, 60*time.Millisecond
	switch r.IntN(4) {
	case 0:
		most = 2 + r.IntN(50)
	case 1:
		most = 2 + r.IntN(5000)
	}
	for sent := 0; len(b) > 0; sent++ {
		if sent == 40 {
			most = len(b) + 1
		}
		n := min(len(b), 1+r.IntN(most))
		if err := send(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if r.IntN(6) == 0 {
			pause := min(left, time.Duration(r.IntN(3000))*time.Microsecond)
			if r.IntN(30) == 0 {
				pause = min(left, 30*time.Millisecond)
			}
			left -= pause
			time.Sleep(pause)
		}
	}
	return nil
}
