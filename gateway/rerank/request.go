package rerank

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// document is one document of a rerank request: a text, or an object with one.
type document struct{ text string }

var errNoText = errors.New("a document without a text")

// UnmarshalJSON accepts both forms.
func (d *document) UnmarshalJSON(b []byte) error {
	text := jsonscan.Value{Kind: jsonscan.String, Raw: b}
	if b[0] != '"' {
		var v [1]jsonscan.Value
		if err := jsonscan.Scan(b, []string{"text"}, v[:]); err != nil {
			return err
		}
		text = v[0]
	}
	if text.Kind != jsonscan.String {
		return errNoText
	}
	return json.Unmarshal(text.Raw, &d.text)
}

// Request is what the gateway handles of a rerank request. It is immutable.
type Request struct {
	texts  []string
	topN   float64 // 0: all
	give   bool    // the documents are returned
	format format
	raw    bool // scores unchanged from the engine, in the format of Text Embeddings Inference
}

// format is that of the answer.
type format uint8

const (
	cohere format = iota // also Jina's
	tei                  // Text Embeddings Inference: texts in place of documents
	voyage               // top_k and truncation
)

var keys = []string{"documents", "top_n", "return_documents", "texts", "top_k", "return_text", "raw_scores", "truncation", "max_tokens_per_doc"}

// Read reads a request from a body that the route has checked: documents or texts is a list, top_n or top_k a number of at
// least 1. Its errors are [api.Error].
func Read(body []byte) (*Request, error) {
	var q Request
	var v [9]jsonscan.Value
	if err := jsonscan.Scan(body, keys, v[:]); err != nil {
		return nil, api.BadJSON(err)
	}
	list, top, name := v[0], v[1], "documents"
	switch {
	case v[3].Set() && !list.Set():
		q.format, list, name = tei, v[3], "texts"
	case v[4].Set() || v[7].Set():
		q.format = voyage
	}
	var documents []document
	if json.Unmarshal(list.Raw, &documents) != nil {
		return nil, api.New(api.InvalidType, "Each document must be a text or an object with a 'text'.").WithParam(name)
	}
	q.texts = make([]string, len(documents))
	for i, d := range documents {
		q.texts[i] = d.text
	}
	if !top.Set() {
		top = v[4]
	}
	if top.Set() {
		var err error
		if q.topN, err = strconv.ParseFloat(string(top.Raw), 64); err != nil {
			q.topN = 0 // too large to read means all
		} else if q.topN != math.Trunc(q.topN) {
			return nil, api.New(api.InvalidType, "'top_n' must be a whole number of at least 1.").WithParam("top_n")
		}
	}
	for _, i := range [...]int{2, 5, 6, 7} {
		if v[i].Set() && v[i].Kind != jsonscan.Bool {
			return nil, api.Newf(api.InvalidType, "'%s' must be true or false.", keys[i]).WithParam(keys[i])
		}
	}
	q.give, q.raw = v[2].Bool() || v[5].Bool(), v[6].Bool()
	if err := q.checkLengths(v[8]); err != nil {
		return nil, err
	}
	return &q, nil
}

// checkLengths refuses documents that may have more tokens than the request allows, because nothing here truncates them. A token
// has at least one byte.
func (q *Request) checkLengths(limit jsonscan.Value) error {
	const name = "max_tokens_per_doc"
	if !limit.Set() {
		return nil
	}
	most, err := strconv.ParseFloat(string(limit.Raw), 64)
	if err != nil {
		return nil // too large to read
	}
	for i, text := range q.texts {
		if float64(len(text)) > most {
			return api.Newf(api.UnsupportedParameter, "Document %d has %d bytes, so it may have more than %v tokens, and documents are not cut here; shorten it or leave '%s' out.", i, len(text), most, name).WithParam(name)
		}
	}
	return nil
}

// EngineBody returns the request's body as engines take it: with plain texts, the canonical name, and without the members
// that only the gateway handles.
func (q *Request) EngineBody(body []byte, model string) ([]byte, error) {
	list, err := jsonscan.Marshal(q.texts)
	if err != nil {
		return nil, err
	}
	if body, err = jsonscan.SetString(body, "model", model); err == nil {
		body, err = jsonscan.Set(body, "documents", list)
	}
	for _, key := range keys[1:] {
		if err == nil {
			body, err = jsonscan.Remove(body, key)
		}
	}
	if err != nil {
		return nil, api.BadJSON(err)
	}
	return body, nil
}
