package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// checkInPieces feeds a text in pieces; the bytes of cuts are their lengths.
func checkInPieces(text, cuts []byte) bool {
	var j jsonText
	for _, n := range cuts {
		k := min(int(n), len(text))
		j.feed(text[:k])
		text = text[k:]
	}
	return j.feed(text) && j.whole()
}

// FuzzJSON compares the check, for any pieces, with encoding/json.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{
		``, ` `, `{}`, `[]`, `[[],{}]`, `{"a":1}`, `{"a":{"b":[1,2.5,-3e+7,true,false,null,"\u00e9\n\\"]}}`, ` [ 1 , 2 ] `, `0`, `-0`, `01`, `1.`, `.5`, `1e`, `1e5`, `-`,
		`+1`, `"a`, `"a"b`, `"\x"`, `"\u12g4"`, "\"\x01\"", `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `[1,]`, `[1 2]`, `[}`, `{]`, `}`, `tru`, `truex`, `nul`, `1 2`, `{"choices": [{`,
		`"0123456789abcdef0123456789\"abcdef"`, "\"0123456\x80789abcd\xff\"", "\"01234567\x1f89\"", `[1,2,"` + strings.Repeat("x", 100) + `"]`, "\ufeff{}", "<html>",
	} {
		f.Add([]byte(text), []byte{3, 1, 7})
	}
	f.Fuzz(func(t *testing.T, text, cuts []byte) {
		if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxDepth {
			t.Skip("deeper than the twin's bound")
		}
		if got, want := checkInPieces(text, cuts), json.Valid(text); got != want {
			t.Errorf("%q in pieces of %v: %v, want %v", text, cuts, got, want)
		}
	})
}

// Texts that are almost JSON, cut in two at every position.
func TestJSONDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	whole := []byte(`{"id":"x-1","choices":[{"index":0,"message":{"role":"assistant","content":"A \"quoted\" text, 0123456789 \u00fc\n"},"p":-1.5e-3}],"ok":true,"n":null,"empty":[{},[]]}`)
	for at := range whole {
		if !checkInPieces(whole, []byte{byte(at)}) {
			t.Fatalf("cut at %d", at)
		}
		if checkInPieces(whole[:at], nil) {
			t.Errorf("cut off at %d: accepted as complete", at)
		}
		damaged := bytes.Clone(whole)
		damaged[at] = byte(rng.IntN(256))
		if got, want := checkInPieces(damaged, []byte{byte(rng.IntN(len(whole)))}), json.Valid(damaged); got != want {
			t.Errorf("%s: %v, want %v", damaged, got, want)
		}
	}
	deep := strings.Repeat(`{"a":[`, maxDepth/2) + strings.Repeat(`]}`, maxDepth/2)
	if !checkInPieces([]byte(deep), nil) {
		t.Error("the deepest allowed text was refused")
	}
	if checkInPieces([]byte("["+deep+"]"), nil) {
		t.Error("a text deeper than allowed was accepted")
	}
}

func TestEventsOfJSON(t *testing.T) {
	for _, tc := range []struct {
		name, stream string
		good         string // the part that may be relayed; all of the stream if empty
	}{
		{name: "openai", stream: "data: {\"a\":1}\n\ndata: [DONE]\n\n"},
		{name: "anthropic", stream: "event: message_start\ndata: {\"a\":1}\n\nevent: ping\ndata: {}\n\n"},
		{name: "comments and fields", stream: ": ping\n\nid: 7\nretry: x\ndata\ndat: {\nerror: {\n\n"},
		{name: "an array", stream: "data: [1,2]\n\ndata:[\"D\"]\n\ndata: []\n\n"},
		{name: "one text on several lines", stream: "data: {\"a\":\ndata: [1,\ndata:2]}\n\n"},
		{name: "CR LF", stream: "data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n"},
		{name: "CR", stream: "data: {\"a\":1}\r\rdata: [DONE]\r\r"},
		{name: "nothing", stream: "data:\n\ndata: \n\n\n\n"},
		{name: "cut off", stream: "data: {\"a\":1}\n\ndata: {\"choices\": [{\n\ndata: {}\n\n", good: "data: {\"a\":1}\n\n"},
		{name: "no JSON", stream: "data: {}\n\n: c\ndata: hello\n\n", good: "data: {}\n\n"},
		{name: "the end, misspelt", stream: "data: [DONE\n\n", good: "-"},
		{name: "the end, and more", stream: "data: {}\n\ndata: [DONE] {}\n\n", good: "data: {}\n\n"},
		{name: "two texts", stream: "data: {}\ndata: {}\n\n", good: "-"},
		{name: "line break in a string", stream: "data: {\"a\ndata: b\":1}\n\n", good: "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.good
			switch want {
			case "":
				want = tc.stream
			case "-":
				want = ""
			}
			var whole jsonEvents
			good, ok := whole.take([]byte(tc.stream))
			if tc.stream[:good] != want || ok != (tc.good == "") || ok && !whole.whole() {
				t.Errorf("good is %q, %v; want %q", tc.stream[:good], ok, want)
			}
			for cut := range len(tc.stream) {
				var e jsonEvents
				first, ok := e.take([]byte(tc.stream[:cut]))
				if ok {
					_, ok = e.take([]byte(tc.stream[cut:]))
				} else if tc.stream[:first] != want {
					t.Errorf("cut at %d: good is %q", cut, tc.stream[:first])
				}
				if ok != (tc.good == "") {
					t.Errorf("cut at %d: %v", cut, ok)
				}
			}
		})
	}
}

func BenchmarkJSONText(b *testing.B) {
	event := `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" the"},"finish_reason":null}]}`
	for name, text := range map[string]string{"event": event, "text": `{"content":"` + strings.Repeat("All of it is text. ", 500) + `"}`, "numbers": "[" + strings.Repeat("0.0123456,", 999) + "1]"} {
		b.Run(fmt.Sprint(name, len(text)), func(b *testing.B) {
			p := []byte(text)
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				var j jsonText
				if !j.feed(p) || !j.whole() {
					b.Fatal("not whole")
				}
			}
		})
	}
}

// A short body that is not one JSON text is refused before its head is passed on; a long one is cut. Its connection is
// not used again.
func TestHoldJSON(t *testing.T) {
	const limit = 64 << 10
	long := `{"text":"` + strings.Repeat("long ", limit/4) + `"}`
	deep := `{"content":[{"input":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}]}`
	sized := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	chunked := func(pieces ...string) string {
		out := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		for _, p := range pieces {
			out += fmt.Sprintf("%x\r\n%s\r\n", len(p), p)
		}
		return out + "0\r\n\r\n"
	}
	for _, tc := range []struct {
		name, reply string
		body        string // complete, if nothing is wrong
		cut         bool   // the fault comes after the limit
	}{
		{name: "sized", reply: sized(`{"a":1}`), body: `{"a":1}`},
		{name: "chunked", reply: chunked(`{"a"`, `:1}`), body: `{"a":1}`},
		{name: "long", reply: sized(long), body: long},
		{name: "long, chunked", reply: chunked(long[:100], long[100:]), body: long},
		{name: "empty", reply: sized("")},
		{name: "empty, chunked", reply: chunked()},
		{name: "a page", reply: sized("<html></html>")},
		{name: "incomplete", reply: sized(`{"choices": [{`)},
		{name: "incomplete, chunked", reply: chunked(`{"choices"`, `: [{`)},
		{name: "two", reply: chunked(`{}`, `{}`)},
		{name: "longer, within the limit", reply: sized(long[:limit/2])},
		{name: "too long", reply: sized(`"` + strings.Repeat("x", 4*limit) + `"`)},
		{name: "too long, chunked", reply: chunked(`"`, strings.Repeat("x", 2*limit), strings.Repeat("x", 2*limit), `"`), cut: true},
		{name: "too deep", reply: sized(deep)},
		{name: "too deep, chunked", reply: chunked(deep[:100], deep[100:])},
		{name: "too deep behind the limit", reply: sized(`[` + long + `,` + deep + `]`), cut: true},
		{name: "not JSON, then deep", reply: sized(`}` + deep)},
		{name: "long and incomplete", reply: sized(long[:len(long)-1]), cut: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newUpstream(t, always(tc.reply)).client(t, Config{})
			r, err := c.Do(nil, get("/"))
			if err != nil {
				t.Fatal(err)
			}
			var ended error
			r.OnEnd = func(err error) { ended = err }
			err = r.HoldJSON(limit, 4*limit)
			if (err == nil) != (tc.body != "" || tc.cut) {
				t.Errorf("known at once: %v", err)
			}
			var body []byte
			if err == nil {
				body, err = r.AppendBody(nil, 1<<30)
			}
			kind := ErrBadReply
			if strings.HasPrefix(tc.name, "too ") {
				kind = ErrTooLarge
			}
			if good := tc.body != ""; good && (err != nil || string(body) != tc.body) || !good && !errors.Is(err, kind) {
				t.Errorf("%d bytes, %v", len(body), err)
			}
			_ = r.Close()
			if (ended == nil) != (err == nil) {
				t.Errorf("read with %v, ended with %v", err, ended)
			}
			if idle := c.Stats().Idle; (idle == 1) != (err == nil) {
				t.Errorf("%d idle connections after %v", idle, err)
			}
		})
	}
}

// An event that is not JSON ends the stream with an error. If it came in one piece, none of it is relayed.
func TestStreamOfJSON(t *testing.T) {
	for name, tc := range map[string]struct{ sent, then, want string }{
		"good":       {chunk("data: {}\n\n") + chunk("data: [DONE]\n\n") + "0\r\n\r\n", "", "data: {}\n\ndata: [DONE]\n\n"},
		"one is bad": {chunk("data: {}\n\ndata: {\"choices\": [{\n\n"), "", "data: {}\n\ndata: {\"error\"}\n\n"},
		"in pieces":  {chunk("data: {}\n\n") + chunk("data: {\"a"), chunk("\": x\n\n"), "data: {}\n\ndata: {\"a\n\ndata: {\"error\"}\n\n"},
		"too deep":   {chunk("data: {}\n\ndata: " + strings.Repeat("[", maxDepth+1)), "", "data: {}\n\ndata: {\"error\"}\n\n"},
		"unfinished": {chunk("data: {}\n\n") + chunk("data: {\"a"), "0\r\n\r\n", "data: {}\n\ndata: {\"a\n\ndata: {\"error\"}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			script := make(chan string)
			ended := make(chan error, 1)
			client := streaming(t, script, StreamConfig{
				Check: func(r *Response) error { r.RequireJSONEvents(); return nil }, OnBreak: func(error) []byte { return []byte("data: {\"error\"}\n\n") }, OnEnd: func(err error) { ended <- err },
			})
			script <- sseHead + tc.sent
			got := ""
			if tc.then != "" {
				got = client.until("{\"a\r\n")
				script <- tc.then
			}
			got += client.until("\r\n0\r\n\r\n")
			_, got, _ = strings.Cut(got, "\r\n\r\n")
			var d chunkDecoder
			data, _, err := d.decode([]byte(got))
			if err != nil || string(data) != tc.want {
				t.Errorf("%q, %v; want %q", data, err, tc.want)
			}
			kind := ErrBadReply
			if name == "too deep" {
				kind = ErrTooLarge
			}
			if err := <-ended; (err != nil) != (name != "good") || err != nil && !errors.Is(err, kind) {
				t.Errorf("ended with %v", err)
			}
			close(script)
		})
	}
}
