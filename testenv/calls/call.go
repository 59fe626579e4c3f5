package calls

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Answer is a finished HTTP exchange.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Err    error // no response, or one that broke off
	Took   time.Duration
}

// ErrorBody is an error in OpenAI's form.
type ErrorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// Error decodes the response's error; zero for none.
func (a Answer) Error() ErrorBody {
	var e struct{ Error ErrorBody }
	_ = json.Unmarshal(a.Body, &e) // no JSON, no error
	return e.Error
}

// Code is the error code of the response, "" for none.
func (a Answer) Code() string { return a.Error().Code }

// RetryAfter is the response's advice in whole seconds, 0 for none, -1 for one that is no number.
func (a Answer) RetryAfter() int {
	v := a.Header.Get("Retry-After")
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return -1
	}
	return n
}

// OK reports whether the response is a 200 that came to its end, be it a stream or not.
func (a Answer) OK() bool {
	if a.Err != nil || a.Status != http.StatusOK {
		return false
	}
	return !a.Streamed() || bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n"))
}

// Streamed reports whether the response is an event stream.
func (a Answer) Streamed() bool {
	return strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream")
}

// LastEvent is the last event of a streamed answer, comments left out, "" for none.
func (a Answer) LastEvent() string {
	last := ""
	for e := range strings.SplitSeq(strings.TrimSuffix(string(a.Body), "\n\n"), "\n\n") {
		if !strings.HasPrefix(e, ":") {
			last = e
		}
	}
	return last
}

// String shows the response in a failure.
func (a Answer) String() string {
	body := bytes.TrimSpace(a.Body)
	if len(body) > 500 {
		body = append(append(bytes.Clone(body[:250]), " … "...), body[len(body)-250:]...)
	}
	text := fmt.Sprintf("%d %s (Retry-After %q, x-should-retry %q, in %v)", a.Status, body, a.Header.Get("Retry-After"), a.Header.Get("x-should-retry"), a.Took)
	if a.Err != nil {
		return a.Err.Error() + " after " + text
	}
	return text
}

// Client makes a client of a test's own, so that no connection of an earlier system is used. conns is how many
// connections it keeps to one server.
func Client(t testing.TB, conns int) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: conns}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// Do makes a request and reads the response to its end. It may be called from any goroutine.
func Do(c *http.Client, req *http.Request, err error) Answer {
	if err != nil {
		return Answer{Err: err}
	}
	began := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return Answer{Err: err, Took: time.Since(began)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: body, Err: err, Took: time.Since(began)}
}

// Post makes a call with a JSON body.
func Post(ctx context.Context, c *http.Client, url, body string) Answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	return Do(c, req, err)
}

// Get makes a GET call.
func Get(ctx context.Context, c *http.Client, url string) Answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	return Do(c, req, err)
}

// Infer makes the request that suits a model of a type.
func Infer(ctx context.Context, c *http.Client, base, typ, model string) Answer {
	req, err := Request(ctx, base, typ, model)
	return Do(c, req, err)
}

// Chat asks an llm for a number of tokens, streamed or not.
func Chat(ctx context.Context, c *http.Client, base, model string, tokens int, stream bool) Answer {
	return Post(ctx, c, base+"/v1/chat/completions", ChatBody(model, tokens, stream))
}

// ChatBody is the body of Chat.
func ChatBody(model string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"stream":%v,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}`, model, stream, tokens)
}

// Request is the request of Infer.
func Request(ctx context.Context, base, typ, model string) (*http.Request, error) {
	path, kind := "", "application/json"
	var body bytes.Buffer
	put := func(p, format string, args ...any) {
		path = p
		fmt.Fprintf(&body, format, args...)
	}
	switch typ {
	case "llm":
		put("/v1/chat/completions", `{"model":%q,"messages":[{"role":"user","content":"hi"}]}`, model)
	case "embedding":
		put("/v1/embeddings", `{"model":%q,"input":"hi"}`, model)
	case "reranking":
		put("/v1/rerank", `{"model":%q,"query":"q","documents":["d"]}`, model)
	case "image":
		put("/v1/images/generations", `{"model":%q,"prompt":"p"}`, model)
	case "tts":
		put("/v1/audio/speech", `{"model":%q,"input":"hi","voice":"v"}`, model)
	case "audio":
		form := multipart.NewWriter(&body)
		_ = form.WriteField("model", model) // into memory
		file, _ := form.CreateFormFile("file", "a.wav")
		_, _ = file.Write([]byte("RIFF"))
		_ = form.Close()
		path, kind = "/v1/audio/transcriptions", form.FormDataContentType()
	default:
		return nil, fmt.Errorf("no request for type %q", typ)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, &body)
	if err == nil {
		req.Header.Set("Content-Type", kind)
	}
	return req, err
}
