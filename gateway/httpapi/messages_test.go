package httpapi

import (
	"strings"
	"testing"
)

// Anthropic's messages have ids of its form, whatever the engine calls them; the rest stays as it is.
func TestMessageIDs(t *testing.T) {
	const body = `{"model":"chat","max_tokens":4,"messages":[{"role":"user","content":"hi"}]`
	s := newStage(t).warm("chat")
	for told, want := range map[string]string{
		`{"id":"chatcmpl-a1","type":"message","content":[{"id":"chatcmpl-x"}]}`: `{"id":"msg_a1","type":"message","content":[{"id":"chatcmpl-x"}]}`,
		`{"id":"msg_a1","type":"message"}`:                                      `{"id":"msg_a1","type":"message"}`,
		`{"id":"other"}`:                                                        `{"id":"msg_other"}`,
		`{"type":"message"}`:                                                    `{"type":"message"}`,
	} {
		if r := s.serve(answering(told)).ask("POST", "/v1/messages", body+"}"); r.status != 200 || r.text != want {
			t.Errorf("%s: %d %s", told, r.status, r.text)
		}
	}

	const begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-a1\",\"role\":\"assistant\"}}\n\n"
	const rest = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"chatcmpl-a1\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	want := strings.Replace(begin, "chatcmpl-", "msg_", 1) + rest
	var pieces []string
	for _, b := range []byte(begin) { // in the smallest pieces
		pieces = append(pieces, string(b))
	}
	for _, pieces := range [][]string{{begin + rest}, append(pieces, rest)} {
		if r := s.serve(sse(pieces...)).ask("POST", "/v1/messages", body+`,"stream":true}`); r.status != 200 || r.text != want {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
}

// Jina's embedding_type is OpenAI's encoding_format.
func TestJinaEmbeddingType(t *testing.T) {
	s := newStage(t).warm("vec").serve(answering(`{"data":[]}`))
	r := s.ask("POST", "/v1/embeddings", `{"model":"vec","input":"a","embedding_type":"base64","task":"text-matching","normalized":true,"late_chunking":false}`)
	const want = `{"encoding_format":"base64","model":"vec","input":"a","task":"text-matching","normalized":true,"late_chunking":false}`
	if got := s.got(); r.status != 200 || len(got) != 1 || string(got[0].body) != want {
		t.Errorf("%d %s; the engine got %s", r.status, r.text, got[0].body)
	}
}
