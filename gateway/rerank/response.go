package rerank

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

type engineResult struct {
	Index int
	Score float64
}

// UnmarshalJSON requires both members: engines also name the score "score", and write the index as 0.0.
func (r *engineResult) UnmarshalJSON(b []byte) error {
	var in struct {
		Index    *float64 `json:"index"`
		Relevant *float64 `json:"relevance_score"`
		Score    *float64 `json:"score"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	score := cmp.Or(in.Relevant, in.Score)
	if in.Index == nil || score == nil {
		return errors.New("a result without an index or a score")
	}
	r.Index, r.Score = int(*in.Index), *score
	return nil
}

// object is an object of a response.
type object map[string]any

// Response returns the engine's results for the client, with scores between 0 and 1 if normalize is set. logits means
// that the engine's scores are never between 0 and 1 on purpose; those of others are mapped only if one is outside. id
// is the request's.
func (q *Request) Response(engine []byte, id, model string, normalize, logits bool) ([]byte, error) {
	var in struct {
		Results []engineResult `json:"results"`
		Usage   struct {
			Prompt int64 `json:"prompt_tokens"`
			Total  int64 `json:"total_tokens"`
		} `json:"usage"`
	}
	results := any(&in)
	if bytes.HasPrefix(bytes.TrimSpace(engine), []byte("[")) { // Text Embeddings Inference
		results = &in.Results
	}
	if err := json.Unmarshal(engine, results); err != nil || in.Results == nil {
		return nil, api.InvalidEngineResponse().WithCause(err)
	}
	normalize = normalize || q.dialect == tei && !q.raw
	normalize = normalize && (logits || slices.ContainsFunc(in.Results, func(r engineResult) bool { return r.Score < 0 || r.Score > 1 }))
	scored := make([]bool, len(q.texts))
	for i, r := range in.Results {
		if r.Index < 0 || r.Index >= len(scored) || scored[r.Index] {
			return nil, api.New(api.BadEngineReply, "The engine's response names a document twice or one that was not in the request.")
		}
		scored[r.Index] = true
		if normalize {
			in.Results[i].Score = 1 / (1 + math.Exp(-r.Score))
		}
	}
	if len(in.Results) < len(scored) {
		return nil, api.New(api.BadEngineReply, "The engine's response leaves documents out.")
	}
	slices.SortStableFunc(in.Results, func(a, b engineResult) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Index, b.Index))
	})
	if q.topN > 0 && q.topN < float64(len(in.Results)) {
		in.Results = in.Results[:int(q.topN)]
	}
	out := make([]object, len(in.Results))
	for i, r := range in.Results {
		out[i] = q.result(r)
	}
	switch q.dialect {
	case tei:
		return jsonscan.Marshal(out)
	case voyage:
		return jsonscan.Marshal(object{"object": "list", "data": out, "model": model, "usage": object{"total_tokens": in.Usage.Total}})
	}
	return jsonscan.Marshal(object{
		"id": id, "model": model, "object": "list", "results": out, "meta": object{"api_version": object{"version": "2"}},
		"usage": object{"prompt_tokens": in.Usage.Prompt, "total_tokens": in.Usage.Total},
	})
}

// result returns a result of the response.
func (q *Request) result(r engineResult) object {
	text := q.texts[r.Index]
	switch {
	case q.dialect == tei && q.returnDocuments:
		return object{"index": r.Index, "score": r.Score, "text": text}
	case q.dialect == tei:
		return object{"index": r.Index, "score": r.Score}
	case q.dialect == voyage && q.returnDocuments:
		return object{"index": r.Index, "relevance_score": r.Score, "document": text}
	case q.returnDocuments:
		return object{"index": r.Index, "relevance_score": r.Score, "document": object{"text": text}}
	}
	return object{"index": r.Index, "relevance_score": r.Score}
}
