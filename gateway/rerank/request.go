// Package rerank translates the rerank dialects (Cohere's and Jina's, Voyage's, Text Embeddings Inference's) to the one
// that engines understand, and their responses back. It does no I/O.
package rerank

import (
	"encoding/json"
	"errors"
	"math"

	"reveille/gateway/api"
	"reveille/gateway/embedding"
	"reveille/infra/jsonscan"
)

// Request is what the gateway handles of a rerank request. It is immutable.
type Request struct {
	texts           []string
	topN            float64 // 0: all
	returnDocuments bool    // the documents are returned
	dialect         dialect
	truncate        bool // texts that are too long are cut
	raw             bool // scores unchanged from the engine, in the dialect of Text Embeddings Inference
}

// dialect is that of the response.
type dialect uint8

const (
	cohere dialect = iota // also Jina's
	tei                   // Text Embeddings Inference: texts in place of documents
	voyage                // top_k and truncation
)

// gatewayFields are those that only the gateway handles, besides the documents.
var gatewayFields = []string{"top_n", "return_documents", "texts", "top_k", "return_text", "raw_scores", "truncation", "truncate"}

// Read reads a request from a body that the route has checked: documents or texts is a list, top_n or top_k a number of
// at least 1. Its errors are [api.Error].
func Read(body []byte) (*Request, error) {
	var in struct {
		Documents       []document `json:"documents"`
		Texts           []document `json:"texts"`
		TopN            *float64   `json:"top_n"`
		TopK            *float64   `json:"top_k"`
		ReturnDocuments bool       `json:"return_documents"`
		ReturnText      bool       `json:"return_text"`
		RawScores       bool       `json:"raw_scores"`
	}
	var truncate [2]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"truncation", "truncate"}, truncate[:]); err != nil {
		return nil, api.BadJSON(err)
	}
	if err := json.Unmarshal(body, &in); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, api.Newf(api.InvalidType, "'%s' has a value of the wrong type.", e.Field).WithParam(e.Field)
		}
		return nil, api.New(api.InvalidType, "Each document must be a text or an object with a 'text'.").WithParam("documents").WithCause(err)
	}
	q := Request{returnDocuments: in.ReturnDocuments || in.ReturnText, raw: in.RawScores}
	documents, top := in.Documents, in.TopN
	switch {
	case documents == nil:
		q.dialect, documents = tei, in.Texts
	case in.TopK != nil || truncate[0].Set():
		q.dialect = voyage
	}
	var err error
	q.truncate = q.dialect != tei
	for _, v := range truncate {
		if q.truncate, err = embedding.ReadTruncate(v, q.truncate); err != nil {
			return nil, err
		}
	}
	name := "top_n"
	if top == nil {
		top, name = in.TopK, "top_k"
	}
	if top != nil {
		q.topN = *top
	}
	if q.topN != math.Trunc(q.topN) {
		return nil, api.Newf(api.InvalidType, "'%s' must be a whole number of at least 1.", name).WithParam(name)
	}
	for _, d := range documents {
		q.texts = append(q.texts, string(d))
	}
	return &q, nil
}

// document is the text of a document.
type document string

// UnmarshalJSON accepts a text or an object with one.
func (d *document) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return json.Unmarshal(b, (*string)(d))
	}
	var object struct{ Text *document }
	if json.Unmarshal(b, &object) != nil || object.Text == nil {
		return errors.New("a document without a text")
	}
	*d = *object.Text
	return nil
}

// EngineBody returns the request's body as engines take it: with plain texts, the canonical name, and without the
// members that only the gateway handles. ofTEI means that the engine is Text Embeddings Inference.
func (q *Request) EngineBody(body []byte, model string, ofTEI bool) ([]byte, error) {
	list, err := jsonscan.Marshal(q.texts)
	if err != nil {
		return nil, err
	}
	documents, others := "documents", gatewayFields
	if ofTEI {
		documents = "texts"
		others = []string{"documents", "top_n", "top_k", "return_documents", "return_text", "truncate", "truncation", "max_tokens_per_doc"}
	}
	if body, err = jsonscan.SetString(body, "model", model); err == nil {
		body, err = jsonscan.Set(body, documents, list)
	}
	if err == nil {
		body, err = jsonscan.Remove(body, others...)
	}
	if err == nil && q.truncate {
		body, err = jsonscan.Set(body, "truncate", []byte("true"))
	}
	if err != nil {
		return nil, api.BadJSON(err)
	}
	return body, nil
}
