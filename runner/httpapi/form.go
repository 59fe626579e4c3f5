package httpapi

import (
	"bytes"
	"errors"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
)

// maxBufferedJSON is how much of an answer is read before its head goes on, in bytes: of one that is no longer, all that can be
// wrong with it is told with a status.
const maxBufferedJSON = 1 << 20

var errForm = errors.New("not of the type that the route answers with")

// A form is what a good answer to a route is.
type form uint8

const (
	anyForm   form = iota // whatever the engine says: its own pages, readings of its state
	noPage                // a sound, a text: anything but a web page
	jsonForm              // a JSON text, or a stream of events that hold JSON
	proseForm             // the same, no longer than a line of a stream may be
)

// formOf is the form of a route of engines.
func formOf(path string) form {
	path, _, _ = strings.Cut(path, "?")
	for _, version := range [...]string{"/v1/", "/v2/"} {
		if rest, ok := strings.CutPrefix(path, version); ok {
			path = "/" + rest
		}
	}
	switch path {
	case "/chat/completions", "/completions", "/infill", "/responses", "/messages":
		return proseForm
	case "/messages/count_tokens", "/chat/completions/input_tokens", "/embeddings", "/rerank", "/reranking", "/images/generations", "/images/edits", "/images/variations",
		"/tokenize", "/detokenize", "/apply-template":
		return jsonForm
	case "/audio/transcriptions", "/audio/translations", "/audio/speech":
		return noPage
	}
	return anyForm
}

// vet judges an answer before anything of it goes on. What can only be judged later ends the answer's body.
func vet(ctx *fasthttp.RequestCtx, f form, resp *relay.Response) error {
	if resp.Status() != fasthttp.StatusOK || !ctx.IsPost() {
		return nil
	}
	kind, _, _ := bytes.Cut(resp.ContentType(), []byte(";"))
	kind = bytes.TrimSpace(kind)
	switch {
	case f == noPage && bytes.EqualFold(kind, []byte("text/html")):
		return resp.Reject(errForm)
	case f < jsonForm || resp.IsEvents():
		return nil
	case len(kind) > 0 && !bytes.EqualFold(kind, []byte("application/json")):
		return resp.Reject(errForm)
	}
	most := 0
	if f == proseForm {
		most = relay.DefaultMaxLine
	}
	return resp.HoldJSON(maxBufferedJSON, most)
}

// streams reports whether a request asks for its answer piece by piece. Inside a text the quotes would be escaped.
func streams(body []byte) bool {
	for {
		_, rest, found := bytes.Cut(body, []byte(`"stream"`))
		if !found {
			return false
		}
		if v, colon := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":")); colon && bytes.HasPrefix(bytes.TrimLeft(v, " \t\r\n"), []byte("true")) {
			return true
		}
		body = rest
	}
}
