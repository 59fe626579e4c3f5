package httpapi

import (
	"strings"
	"testing"
)

const ranked = `{"results":[{"index":0.0,"score":0},{"index":1,"relevance_score":2}],"usage":{"prompt_tokens":9,"total_tokens":9}}`

// Rerank requests in the formats of Text Embeddings Inference and of Voyage get responses in the same format.
func TestRerankDialects(t *testing.T) {
	s := newStage(t).warm("rank", "norm").serve(answering(ranked))
	const sent, whole = `{"truncate":true,"model":"rank","query":"q","documents":["a","b"]}`, `{"model":"rank","query":"q","documents":["a","b"]}`
	for _, c := range []struct{ path, body, want, sent string }{
		{"/rerank", `{"query":"q","texts":["a","b"],"truncate":false}`, `[{"index":1,"score":0.8807970779778823},{"index":0,"score":0.5}]`, `{"documents":["a","b"],"model":"rank","query":"q"}`},
		{"/rerank", `{"model":"rank","query":"q","texts":["a","b"],"raw_scores":true,"return_text":true}`, `[{"index":1,"score":2,"text":"b"},{"index":0,"score":0,"text":"a"}]`, `{"documents":["a","b"],"model":"rank","query":"q"}`},
		{"/rerank", `{"model":"norm","query":"q","texts":["a","b"]}`, `[{"index":1,"score":0.8807970779778823},{"index":0,"score":0.5}]`, ""},
		{"/v1/rerank", `{"model":"rank","query":"q","documents":["a","b"],"top_k":1,"truncation":true}`,
			`{"data":[{"index":1,"relevance_score":2}],"model":"rank","object":"list","usage":{"total_tokens":9}}`, sent},
		{"/v1/rerank", `{"model":"rank","query":"q","documents":["a","b"],"top_k":null,"truncation":true,"return_documents":true}`,
			`{"data":[{"document":"b","index":1,"relevance_score":2},{"document":"a","index":0,"relevance_score":0}],"model":"rank","object":"list","usage":{"total_tokens":9}}`, sent},
		{"/rerank", `{"model":"rank","query":"q","documents":["a","b"],"texts":["c"]}`, `"results":[{"index":1,"relevance_score":2}`, sent},
		{"/v2/rerank", `{"model":"rank","query":"q","documents":["a","b"],"max_tokens_per_doc":1}`, `"results":[{"index":1,"relevance_score":2},{"index":0,"relevance_score":0}]`, `{"truncate":true,"model":"rank","query":"q","documents":["a","b"],"max_tokens_per_doc":1}`},
		{"/v2/rerank", `{"model":"rank","query":"q","documents":["a","b"],"truncate":"NONE"}`, `"results":[`, whole},
		{"/v1/rerank", `{"model":"rank","query":"q","documents":["a","b"],"truncation":false}`, `{"data":[`, whole},
	} {
		r := s.ask("POST", c.path, c.body)
		if got := s.got()[len(s.got())-1]; r.status != 200 || !strings.Contains(r.text, c.want) || c.sent != "" && string(got.body) != c.sent {
			t.Errorf("%s: %d %s; the engine got %s", c.body, r.status, r.text, got.body)
		}
	}
	s.warm("tei").serve(answering(`[{"index":1,"score":0.9},{"index":0,"score":0.1}]`)) // its scores are not mapped again
	for body, want := range map[string]string{
		`{"model":"tei","query":"q","texts":["a","b"],"return_text":true}`: `[{"index":1,"score":0.9,"text":"b"},{"index":0,"score":0.1,"text":"a"}]`,
		`{"model":"tei","query":"q","documents":["a","b"],"top_n":1}`:      `"results":[{"index":1,"relevance_score":0.9}]`,
	} {
		r := s.ask("POST", "/rerank", body)
		got := s.got()[len(s.got())-1]
		if !strings.Contains(r.text, want) || got.path != "/rerank" || !strings.Contains(string(got.body), `"texts":["a","b"]`) || strings.Contains(string(got.body), "return") {
			t.Errorf("%s: %d %s; the engine got %s %s", body, r.status, r.text, got.path, got.body)
		}
	}
	for body, param := range map[string]string{
		`{"model":"rank","query":"q","texts":[]}`:                                    "texts",
		`{"model":"rank","query":"q","texts":["a",1]}`:                               "documents",
		`{"model":"rank","query":"q","texts":["a"],"raw_scores":1}`:                  "raw_scores",
		`{"model":"rank","query":"q","documents":["a"],"top_k":0}`:                   "top_k",
		`{"model":"rank","query":"q","documents":["a"],"top_k":1.5}`:                 "top_k",
		`{"model":"rank","query":"q","documents":["a","bb"],"truncate":"START"}`:     "truncate",
		`{"model":"rank","query":"q","documents":["a","bb"],"max_tokens_per_doc":0}`: "max_tokens_per_doc",
	} {
		if r := s.ask("POST", "/rerank", body); r.status != 400 || r.param() != param {
			t.Errorf("%.100s: %d %s", body, r.status, r.text)
		}
	}
}

// Embedding requests in the formats of Text Embeddings Inference and of Cohere get responses in the same format.
func TestEmbedDialects(t *testing.T) {
	const reply = `{"object":"list","usage":{"prompt_tokens":5,"total_tokens":5},"data":[{"index":1,"embedding":[0,0,1]},{"index":0,"embedding":[3,4,12]}]}`
	s := newStage(t).warm("vec", "cut").serve(answering(reply))
	for _, c := range []struct{ path, body, want, sent string }{
		{"/embed", `{"inputs":["a","b"],"truncate":true,"normalize":true}`, `[[3,4,12],[0,0,1]]`, `{"model":"vec","input":["a","b"],"truncate":true}`},
		{"/embed", `{"model":"cut","inputs":["a","b"],"dimensions":2}`, `[[0.6,0.8],[0,0]]`, `{"model":"cut","input":["a","b"]}`},
		{"/v2/embed", `{"model":"vec","texts":["a","b"],"input_type":"search_document","embedding_types":["float"]}`,
			`"embeddings":{"float":[[3,4,12],[0,0,1]]},"texts":["a","b"],"meta":{"api_version":{"version":"2"},"billed_units":{"input_tokens":5}}}`, `{"model":"vec","input":["a","b"],"truncate":true}`},
		{"/v2/embed", `{"model":"cut","texts":["a","b"],"embedding_types":["base64"],"output_dimension":2}`, `"embeddings":{"base64":["mpkZP83MTD8=","AAAAAAAAAAA="]}`, `{"model":"cut","input":["a","b"],"truncate":true}`},
		{"/v2/embed", `{"model":"vec","texts":["a","b"],"truncate":false}`, "[3,4,12]", `{"model":"vec","input":["a","b"]}`},
		{"/v2/embed", `{"model":"vec","texts":["a","b"],"truncate":true}`, "[3,4,12]", `{"model":"vec","input":["a","b"],"truncate":true}`},
		{"/v1/embeddings", `{"model":"vec","input":["a","b"],"truncate":"END"}`, "[3,4,12]", `{"truncate":true,"model":"vec","input":["a","b"]}`},
		{"/v1/embeddings", `{"model":"vec","input":["a","b"],"truncate":"NONE"}`, "[3,4,12]", `{"model":"vec","input":["a","b"]}`},
	} {
		r := s.ask("POST", c.path, c.body)
		if got := s.got()[len(s.got())-1]; r.status != 200 || !strings.Contains(r.text, c.want) || string(got.body) != c.sent || got.path != "/v1/embeddings" {
			t.Errorf("%s: %d %s; the engine got %s %s", c.body, r.status, r.text, got.path, got.body)
		}
	}
	for body, status := range map[string]int{
		`{"model":"vec","input":["a","b"],"dimensions":3.0}`: 200, `{"model":"vec","input":["a","b"],"dimensions":2}`: 400, "\ufeff" + `{"model":"vec","input":["a","b"]}`: 200,
	} {
		if r := s.ask("POST", "/v1/embeddings", body); r.status != status {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	if r := s.ask("POST", "/v1/embeddings", `{"model":"cut","input":["a","b"],"output_dimension":2}`); !strings.Contains(r.text, `[0.6,0.8]`) {
		t.Errorf("Voyage's name of the dimensions: %s", r.text)
	}
	for _, c := range []struct{ path, body, param string }{
		{"/embed", `{"inputs":[]}`, "inputs"},
		{"/embed", `{"inputs":[{"text":"a"}]}`, "input"},
		{"/embed", `{"inputs":"a","normalize":false}`, "normalize"},
		{"/embed", `{"inputs":"a","prompt_name":"query"}`, "prompt_name"},
		{"/embed", `{"inputs":["a","b"],"dimensions":2}`, "dimensions"},
		{"/embed", `{"model":"chat","inputs":"a"}`, "model"},
		{"/v2/embed", `{"model":"vec"}`, "texts"},
		{"/v2/embed", `{"model":"vec","texts":["a"],"embedding_types":["int8"]}`, "embedding_types"},
		{"/v2/embed", `{"model":"vec","texts":["a"],"embedding_types":["base64","float","base64"]}`, "embedding_types"},
		{"/v2/embed", `{"model":"vec","texts":["a"],"images":["data:"]}`, "images"},
		{"/v2/embed", `{"model":"vec","texts":["a"],"inputs":[]}`, "inputs"},
		{"/v1/embeddings", `{"model":"vec","input":[{"text":"a"}]}`, "input"},
		{"/v1/embeddings", `{"model":"vec","input":["a","b"],"output_dimension":2}`, "dimensions"},
		{"/v1/embeddings", `{"model":"vec","input":"a","output_dtype":"int8"}`, "output_dtype"},
		{"/v1/embeddings", `{"model":"vec","input":"a","embedding_type":"binary"}`, "embedding_type"},
		{"/v1/embeddings", `{"model":"vec","input":"a","embedding_type":["float"]}`, "embedding_type"},
		{"/v1/embeddings", `{"model":"vec","input":"a","late_chunking":true}`, "late_chunking"},
		{"/v1/embeddings", `{"model":"vec","input":"a","truncate":"START"}`, "truncate"},
		{"/v1/embeddings", `{"model":"vec","input":"a","return_multivector":true}`, "return_multivector"},
		{"/v1/embeddings", `{"model":"vec","input":"a","normalized":false}`, "normalized"},
	} {
		if r := s.ask("POST", c.path, c.body); r.status != 400 || r.param() != c.param {
			t.Errorf("%s %s: %d %s", c.path, c.body, r.status, r.text)
		}
	}
	info := s.ask("GET", "/info", "")
	if info.status != 200 || info.json["model_id"] != "vec" || shape(info.json["model_type"]) != "{embedding:{}}" || info.json["max_client_batch_size"] != 2048.0 || info.json["version"] == "" {
		t.Errorf("info: %d %s", info.status, info.text)
	}
	if r := s.ask("GET", "/info?model=rank", ""); r.json["model_id"] != "rank" || shape(r.json["model_type"]) != "{reranker:{}}" {
		t.Errorf("info of a reranker: %s", r.text)
	}
	if r := s.ask("GET", "/info?model=nobody", ""); r.status != 404 {
		t.Errorf("info of nobody: %s", r.text)
	}
}

// Jina's embedding_type is OpenAI's encoding_format.
func TestJinaEmbeddingType(t *testing.T) {
	s := newStage(t).warm("vec").serve(answering(`{"data":[{"embedding":"AA=="}]}`))
	r := s.ask("POST", "/v1/embeddings", `{"model":"vec","input":"a","embedding_type":"base64","task":"text-matching","normalized":true,"late_chunking":false}`)
	const want = `{"encoding_format":"base64","model":"vec","input":"a","task":"text-matching","normalized":true,"late_chunking":false}`
	if got := s.got(); r.status != 200 || len(got) != 1 || string(got[0].body) != want {
		t.Errorf("%d %s; the engine got %s", r.status, r.text, got[0].body)
	}
}
