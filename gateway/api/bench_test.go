package api

import (
	"testing"

	"reveille/infra/jsonscan"
)

// hotPaths are inference requests as they come.
var hotPaths = []string{"/v1/chat/completions", "/api/v1/embeddings", "/v1/messages", "/api/chat", "/rerank"}

func BenchmarkMatch(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Match("POST", hotPaths[0])
	}
}

// BenchmarkAdmit is all a warm request needs of this package and of peek.
func BenchmarkAdmit(b *testing.B) {
	body := []byte(`{"model":"qwen3-4b","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"What is the capital of France, and since when?"}],"temperature":0.7,"max_tokens":256,"stream":true}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		r := Match("POST", hotPaths[0]).Route
		var values [MaxKeys]jsonscan.Value
		if jsonscan.Scan(body, r.Keys(), values[:]) != nil || r.Check(values[:]) != nil {
			b.Fatal("refused")
		}
	}
}
