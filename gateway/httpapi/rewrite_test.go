package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
)

// answering returns an engine that always sends the same text.
func answering(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

func TestRerank(t *testing.T) {
	const reply = `{"results":[{"index":0,"relevance_score":-2.5,"document":{"text":"engine's"}},{"index":2,"relevance_score":1},{"index":1,"relevance_score":1}],"usage":{"prompt_tokens":9,"total_tokens":9}}`
	s := newStage(t).warm("rank", "norm").serve(answering(reply))
	docs := `"documents":["a",{"text":"b<"},{"text":"c","id":7}]`
	for _, c := range []struct{ path, body, results string }{
		{"/v1/rerank", `{"model":"rank","query":"q",` + docs + `}`, `[{"index":1,"relevance_score":1},{"index":2,"relevance_score":1},{"index":0,"relevance_score":-2.5}]`},
		{"/rerank", `{"model":"rank","query":"q",` + docs + `,"top_n":1}`, `[{"index":1,"relevance_score":1}]`},
		{"/v2/rerank", `{"model":"rank","query":"q",` + docs + `,"top_n":99,"return_documents":true}`, `[{"document":{"text":"b<"},"index":1,"relevance_score":1},{"document":{"text":"c"},"index":2,"relevance_score":1},{"document":{"text":"a"},"index":0,"relevance_score":-2.5}]`},
		{"/v1/reranker", `{"model":"rank","query":"q","Documents":[1],` + docs + `,"top_n":1e300,"return_documents":null}`, ""},
	} {
		r := s.ask("POST", c.path, c.body)
		var got struct {
			ID, Model, Object string
			Results           json.RawMessage
			Usage             map[string]int
			Meta              struct {
				APIVersion struct{ Version string } `json:"api_version"`
			}
		}
		if err := json.Unmarshal([]byte(r.text), &got); err != nil || r.status != 200 || c.results != "" && string(got.Results) != c.results {
			t.Errorf("%s: %d %s", c.body, r.status, r.text)
		}
		if got.ID == "" || got.Model != "rank" || got.Object != "list" || got.Usage["total_tokens"] != 9 || got.Meta.APIVersion.Version == "" {
			t.Errorf("%+v", got)
		}
	}
	if body := string(s.got()[2].body); body != `{"truncate":true,"model":"rank","query":"q","documents":["a","b<","c"]}` || s.got()[2].path != "/v1/rerank" {
		t.Errorf("the engine got %s", body)
	}
	r := s.ask("POST", "/v1/rerank", `{"model":"norm","query":"q",`+docs+`}`)
	if !strings.Contains(r.text, `"relevance_score":0.7310585786`) {
		t.Errorf("normalized: %s", r.text)
	}
	for body, param := range map[string]string{
		`{"model":"rank","query":"q","documents":[]}`:                             "documents",
		`{"model":"rank","query":"","documents":["a"]}`:                           "query",
		`{"model":"rank","query":"q","documents":["a",1]}`:                        "documents",
		`{"model":"rank","query":"q","documents":[{"t":"a"}]}`:                    "documents",
		`{"model":"rank","query":"q","documents":[null]}`:                         "documents",
		`{"model":"rank","query":"q","documents":["a"],"top_n":0}`:                "top_n",
		`{"model":"rank","query":"q","documents":["a"],"top_n":1.5}`:              "top_n",
		`{"model":"rank","query":"q","documents":["a"],"return_documents":"yes"}`: "return_documents",
		`{"model":"chat","query":"q","documents":["a"]}`:                          "model",
	} {
		if r := s.ask("POST", "/v1/rerank", body); r.status != 400 || !strings.Contains(r.text, `"param":"`+param+`"`) {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	for _, bad := range []string{`{}`, `no`, `{"results":[{"index":3,"relevance_score":1}]}`, `{"results":[{"index":-1,"relevance_score":1}]}`,
		`{"results":[{"relevance_score":1},{"index":1,"relevance_score":1},{"index":2,"relevance_score":1}]}`,
		`{"results":[{"index":0,"relevance_score":null},{"index":1,"relevance_score":1},{"index":2,"relevance_score":1}]}`,
		`{"results":[{"index":0,"score":1},{"index":0,"score":1},{"index":2,"score":1}]}`, `{"results":[{"index":0,"score":1}]}`} {
		s.serve(answering(bad))
		if r := s.ask("POST", "/v1/rerank", `{"model":"rank","query":"q",`+docs+`}`); r.status != 502 || r.code() != "bad_engine_reply" {
			t.Errorf("%s: %d %s", bad, r.status, r.text)
		}
	}
}

func TestEmbeddings(t *testing.T) {
	const reply = `{"object":"list","model":"cut","usage":{"prompt_tokens":5,"total_tokens":5},"data":[{"object":"embedding","index":0,"embedding":[3,4,12]},{"object":"embedding","index":1,"embedding":[0,0,1]}]}`
	s := newStage(t).warm("vec", "cut").serve(answering(reply))
	if r := s.ask("POST", "/v1/embeddings", `{"model":"cut","input":["a","b"],"encoding_format":"base64"}`); r.text != reply || !strings.Contains(string(s.got()[0].body), "base64") {
		t.Errorf("without dimensions: %s", r.text)
	}
	s.until("the usage in front was read", func() bool { return s.stat("input_tokens") == 5 })
	r := s.ask("POST", "/v1/embeddings", `{"model":"cut","input":["a","b"],"dimensions":2,"encoding_format":"float"}`)
	if !strings.Contains(r.text, `[0.6,0.8]`) || !strings.Contains(r.text, `[0,0]`) || string(s.got()[1].body) != `{"model":"cut","input":["a","b"]}` {
		t.Errorf("%s, engine %s", r.text, s.got()[1].body)
	}
	r = s.ask("POST", "/v1/embeddings", `{"model":"cut","input":["a","b"],"dimensions":2,"encoding_format":"base64"}`)
	var got struct{ Data []struct{ Embedding string } }
	if err := json.Unmarshal([]byte(r.text), &got); err != nil {
		t.Fatal(err, r.text)
	}
	raw, err := base64.StdEncoding.DecodeString(got.Data[0].Embedding)
	if err != nil || len(raw) != 8 || math.Float32frombits(binary.LittleEndian.Uint32(raw)) != 0.6 {
		t.Errorf("%x %v", raw, err)
	}
	for body, code := range map[string]string{
		`{"model":"vec","input":["a","b"],"dimensions":2}`:    "unsupported_parameter",
		`{"model":"cut","input":"a","dimensions":0}`:          "invalid_type",
		`{"model":"cut","input":"a","dimensions":"2"}`:        "invalid_type",
		`{"model":"cut","input":["a","b"],"dimensions":4}`:    "invalid_type",
		`{"model":"cut","input":"a","encoding_format":"int"}`: "invalid_type",
		`{"model":"cut","input":[]}`:                          "missing_required_parameter",
	} {
		if r := s.ask("POST", "/v1/embeddings", body); r.status != 400 || r.code() != code {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
}

// Responses of a success that are none.
func TestInvalidEngineResponses(t *testing.T) {
	s := newStage(t).warm("vec", "chat")
	const messages = `{"model":"chat","messages":[{"role":"user","content":"x"}],"max_tokens":5}`
	const mark, chat, two = "\ufeff", `{"model":"chat","messages":[{"role":"user","content":"x"}],"stream":false}`, `{"model":"vec","input":["a","b"]}`
	for _, c := range []struct{ path, body, engine, message string }{
		{"/v1/embeddings", two, `{"data":[{"embedding":[1]}]}`, "is invalid"},
		{"/v1/embeddings", two, `{"data":[{"embedding":[1]},{"embedding":null}]}`, "is invalid"},
		{"/v1/embeddings", two, `{"data":[{"embedding":[1]},{"embedding":[1,2]}]}`, "is invalid"},
		{"/v1/embeddings", two, `{"data":[{"embedding":[1]},{"embedding":[]}]}`, "is invalid"},
		{"/v1/embeddings", two, `{"data":[{"embedding":[1,2]},{"embedding":[1,null]}]}`, "is invalid"},
		{"/v1/embeddings", two, `{"data":[{"embedding":[1],"index":0},{"embedding":[1],"index":0}]}`, "is invalid"},
		{"/v1/embeddings", `{"model":"vec","input":"a"}`, ``, "is invalid"},
		{"/v1/embeddings", two, `{"error":{"message":"no"}}`, "no"},
		{"/api/embed", two, `{"data":[{"index":0,"embedding":[1]}]}`, "is invalid"},
		{"/api/embed", `{"model":"vec","input":"a"}`, `{"data":[{"index":0,"embedding":null}]}`, "is invalid"},
		{"/api/embed", two, ``, "is invalid"},
		{chatPath, chatBody, `{"error":"no"}`, "no"},
		{"/api/chat", chat, mark + `{"error":{"message":"no"}}`, "no"},
		{"/v1/responses", `{"model":"chat","input":"x"}`, `{"error":{"message":"no"}}`, "no"},
		{"/v1/responses", `{"model":"chat","input":"x"}`, `{"choices":[{"message":{}}],"error":{"message":"boom"}}`, "boom"},
		{"/v1/messages", messages, `{"type":"error","error":{"type":"api_error","message":"boom"}}`, "boom"},
		{chatPath, chatBody, `{"object":"error","message":"boom","type":"BadRequestError","code":400}`, "boom"},
		{chatPath, chatBody, `{"detail":"boom"}`, "boom"},
		{"/api/chat", chat, `{"message":"boom","code":500}`, "boom"},
		{"/api/chat", chat, `{"choices":[{"message":{},"finish_reason":"error","error":{"message":"boom"}}]}`, "boom"},
		{"/v1/responses", `{"model":"chat","input":"x"}`, `{"choices":[{"message":{},"finish_reason":"abort"}]}`, "aborted"},
	} {
		s.serve(answering(c.engine))
		if r := s.ask("POST", c.path, c.body); r.status != 502 || !strings.Contains(r.text, c.message) {
			t.Errorf("%s %s: %d %s", c.path, c.engine, r.status, r.text)
		}
	}
	s.serve(answering(mark + `{"choices":[{"message":{"content":"hello"}}]}`))
	for path, body := range map[string]string{"/api/chat": chat, "/v1/responses": `{"model":"chat","input":"x"}`} {
		if r := s.ask("POST", path, body); r.status != 200 || !strings.Contains(r.text, "hello") {
			t.Errorf("%s behind a mark: %d %s", path, r.status, r.text)
		}
	}
}
