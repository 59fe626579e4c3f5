package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

// maxBuffered bounds answers that are rewritten instead of relayed.
const maxBuffered = 256 << 20

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

// rerankRequest is the part of a rerank request that the gateway handles.
type rerankRequest struct {
	texts  []string
	topN   float64 // 0: all
	giving bool    // the documents are returned
	form   rerankForm
	raw    bool // scores unchanged from the engine, in the format of Text Embeddings Inference
}

// rerankForm is the API whose format the answer has.
type rerankForm uint8

const (
	cohereForm rerankForm = iota // also Jina's
	teiForm                      // Text Embeddings Inference: texts in place of documents
	voyageForm                   // top_k and truncation
)

var rerankKeys = []string{"documents", "top_n", "return_documents", "texts", "top_k", "return_text", "raw_scores", "truncation", "max_tokens_per_doc"}

// readRerank reads a rerankRequest from a body that the route has checked: documents or texts is a list, top_n or top_k
// a number of at least 1.
func readRerank(body []byte) (q rerankRequest, err error) {
	var v [9]jsonscan.Value
	if err := jsonscan.Scan(body, rerankKeys, v[:]); err != nil {
		return q, api.BadJSON(err)
	}
	list, top, name := v[0], v[1], "documents"
	switch {
	case v[3].Set() && !list.Set():
		q.form, list, name = teiForm, v[3], "texts"
	case v[4].Set() || v[7].Set():
		q.form = voyageForm
	}
	var documents []document
	if json.Unmarshal(list.Raw, &documents) != nil {
		return q, api.New(api.InvalidType, "Each document must be a text or an object with a 'text'.").With(name)
	}
	q.texts = make([]string, len(documents))
	for i, d := range documents {
		q.texts[i] = d.text
	}
	if !top.Set() {
		top = v[4]
	}
	if top.Set() {
		if q.topN, err = strconv.ParseFloat(string(top.Raw), 64); err != nil {
			q.topN = 0 // too large to read means all
		} else if q.topN != math.Trunc(q.topN) {
			return q, api.New(api.InvalidType, "'top_n' must be a whole number of at least 1.").With("top_n")
		}
	}
	for _, i := range [...]int{2, 5, 6, 7} {
		if v[i].Set() && v[i].Kind != jsonscan.Bool {
			return q, api.Newf(api.InvalidType, "'%s' must be true or false.", rerankKeys[i]).With(rerankKeys[i])
		}
	}
	q.giving, q.raw = v[2].Bool() || v[5].Bool(), v[6].Bool()
	return q, q.fit(v[8])
}

// fit refuses documents that may have more tokens than the request allows, because nothing here truncates them. A token
// has at least one byte.
func (q rerankRequest) fit(limit jsonscan.Value) error {
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
			return api.Newf(api.UnsupportedParameter, "Document %d has %d bytes, so it may have more than %v tokens, and documents are not cut here; shorten it or leave '%s' out.", i, len(text), most, name).With(name)
		}
	}
	return nil
}

type rerankResult struct {
	Index    int           `json:"index"`
	Score    float64       `json:"relevance_score"`
	Document *documentText `json:"document,omitempty"`
}

type documentText struct {
	Text string `json:"text"`
}

type rerankUsage struct {
	Prompt int64 `json:"prompt_tokens"`
	Total  int64 `json:"total_tokens"`
}

type rerankAnswer struct {
	ID      string         `json:"id"`
	Model   string         `json:"model"`
	Object  string         `json:"object"`
	Results []rerankResult `json:"results"`
	Usage   rerankUsage    `json:"usage"`
	Meta    rerankMeta     `json:"meta"`
}

type rerankMeta struct {
	APIVersion struct {
		Version string `json:"version"`
	} `json:"api_version"`
}

// rerank serves the rerank dialect over engines that take plain texts and answer in any order. It turns documents into
// texts for the engine, then sorts the results, cuts them to top_n and adds their documents.
func (s *Server) rerank(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	q, err := readRerank(c.body)
	if err != nil {
		return err
	}
	if c.body, err = engineDocuments(c.body, q.texts, c.model.ID); err != nil {
		return err
	}
	x := &exchange{call: c, path: rerankPath}
	x.answer = func(x *exchange, resp *relay.Response) error { return x.sendRerank(resp, q) }
	return x.start()
}

var rerankPath = []byte("/v1/rerank")

// engineDocuments puts plain texts and the canonical name into the body and removes members that only the gateway
// handles.
func engineDocuments(body []byte, texts []string, model string) ([]byte, error) {
	list, err := jsonscan.Marshal(texts)
	if err != nil {
		return nil, err
	}
	if body, err = jsonscan.SetString(body, "model", model); err == nil {
		body, err = jsonscan.Set(body, "documents", list)
	}
	for _, key := range rerankKeys[1:] {
		if err == nil {
			body, err = jsonscan.Remove(body, key)
		}
	}
	if err != nil {
		return nil, api.BadJSON(err)
	}
	return body, nil
}

// sendRerank answers with the engine's results, sorted, cut, and with their documents.
func (x *exchange) sendRerank(resp *relay.Response, q rerankRequest) error {
	raw, err := resp.AppendBody(nil, maxBuffered)
	if err != nil {
		return err
	}
	var in struct {
		Results []rerankResult `json:"results"`
		Usage   rerankUsage    `json:"usage"`
	}
	if err := json.Unmarshal(raw, &in); err != nil || in.Results == nil {
		return api.NotUnderstood().WithCause(err)
	}
	for _, res := range in.Results {
		if res.Index < 0 || res.Index >= len(q.texts) {
			return api.New(api.BadEngineReply, "The model's answer names documents that were not sent.")
		}
	}
	out := rerankAnswer{ID: x.ID, Model: x.model.ID, Object: "list", Results: in.Results, Usage: in.Usage}
	out.Meta.APIVersion.Version = "2"
	if x.model.NormalizeScores || q.form == teiForm && !q.raw {
		for i := range out.Results {
			out.Results[i].Score = 1 / (1 + math.Exp(-out.Results[i].Score))
		}
	}
	slices.SortStableFunc(out.Results, func(a, b rerankResult) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Index, b.Index))
	})
	if q.topN > 0 && q.topN < float64(len(out.Results)) {
		out.Results = out.Results[:int(q.topN)]
	}
	for i := range out.Results {
		out.Results[i].Document = nil // the engine's own
		if q.giving {
			out.Results[i].Document = &documentText{q.texts[out.Results[i].Index]}
		}
	}
	switch q.form {
	case teiForm:
		return x.sendJSON(out.tei(), raw)
	case voyageForm:
		return x.sendJSON(out.voyage(), raw)
	}
	return x.sendJSON(out, raw)
}

type teiResult struct {
	Index int     `json:"index"`
	Score float64 `json:"score"`
	Text  *string `json:"text,omitempty"`
}

// tei returns the answer in the format of Text Embeddings Inference.
func (a rerankAnswer) tei() []teiResult {
	out := make([]teiResult, len(a.Results))
	for i, r := range a.Results {
		out[i] = teiResult{r.Index, r.Score, r.Document.plain()}
	}
	return out
}

type voyageAnswer struct {
	Object string         `json:"object"`
	Data   []voyageResult `json:"data"`
	Model  string         `json:"model"`
	Usage  struct {
		Total int64 `json:"total_tokens"`
	} `json:"usage"`
}

type voyageResult struct {
	Index    int     `json:"index"`
	Score    float64 `json:"relevance_score"`
	Document *string `json:"document,omitempty"`
}

// voyage returns the answer in Voyage's format.
func (a rerankAnswer) voyage() voyageAnswer {
	out := voyageAnswer{Object: a.Object, Data: make([]voyageResult, len(a.Results)), Model: a.Model}
	out.Usage.Total = a.Usage.Total
	for i, r := range a.Results {
		out.Data[i] = voyageResult{r.Index, r.Score, r.Document.plain()}
	}
	return out
}

// plain returns the text, nil for no document.
func (d *documentText) plain() *string {
	if d == nil {
		return nil
	}
	return &d.Text
}

// sendJSON answers with a rewritten body; raw is the engine's own, for the statistics.
func (x *exchange) sendJSON(v any, raw []byte) error {
	x.tap = &tap{}
	x.tap.keep(raw)
	x.modelHeaders()
	return x.Reply(fasthttp.StatusOK, v)
}
