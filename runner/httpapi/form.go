package httpapi

import (
	"bytes"
	"errors"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
)

// maxBufferedJSON is how many bytes of an answer are read before its head is passed on. Every fault of an answer that
// is no longer is reported with a status.
const maxBufferedJSON = 1 << 20

var errForm = errors.New("not of the type that the route answers with")

// A form is what a valid answer to a route looks like.
type form uint8

const (
	anyForm   form = iota // whatever the engine sends: its own pages, readings of its state
	noPage                // audio, text: anything but a web page
	jsonForm              // a JSON text, or a stream of events that hold JSON
	proseForm             // the same, no longer than a line of a stream may be
)

// formOf returns the form of an engine's route.
func formOf(path string) form {
	path, _, _ = strings.Cut(path, "?")
	for _, version := range [...]string{"/v1", "/v2"} {
		if rest, ok := strings.CutPrefix(path, version); ok && strings.HasPrefix(rest, "/") {
			path = rest
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

// checkHead checks an answer before any of it is passed on. A fault that shows only later ends the answer's body.
func checkHead(method string, f form, resp *relay.Response) error {
	if resp.Status() != fasthttp.StatusOK || method != fasthttp.MethodPost {
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
