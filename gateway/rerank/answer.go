package rerank

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

type result struct {
	Index    int           `json:"index"`
	Score    float64       `json:"relevance_score"`
	Document *documentText `json:"document,omitempty"`
}

type documentText struct {
	Text string `json:"text"`
}

type usage struct {
	Prompt int64 `json:"prompt_tokens"`
	Total  int64 `json:"total_tokens"`
}

type answer struct {
	ID      string   `json:"id"`
	Model   string   `json:"model"`
	Object  string   `json:"object"`
	Results []result `json:"results"`
	Usage   usage    `json:"usage"`
	Meta    meta     `json:"meta"`
}

type meta struct {
	APIVersion struct {
		Version string `json:"version"`
	} `json:"api_version"`
}

// Answer returns the engine's results for the client, with scores between 0 and 1 if normalize is set. id is the request's.
func (q *Request) Answer(engine []byte, id, model string, normalize bool) ([]byte, error) {
	var in struct {
		Results []result `json:"results"`
		Usage   usage    `json:"usage"`
	}
	if err := json.Unmarshal(engine, &in); err != nil || in.Results == nil {
		return nil, api.NotUnderstood().WithCause(err)
	}
	for _, res := range in.Results {
		if res.Index < 0 || res.Index >= len(q.texts) {
			return nil, api.New(api.BadEngineReply, "The model's answer names documents that were not sent.")
		}
	}
	out := answer{ID: id, Model: model, Object: "list", Results: in.Results, Usage: in.Usage}
	out.Meta.APIVersion.Version = "2"
	if normalize || q.format == tei && !q.raw {
		for i := range out.Results {
			out.Results[i].Score = 1 / (1 + math.Exp(-out.Results[i].Score))
		}
	}
	slices.SortStableFunc(out.Results, func(a, b result) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Index, b.Index))
	})
	if q.topN > 0 && q.topN < float64(len(out.Results)) {
		out.Results = out.Results[:int(q.topN)]
	}
	for i := range out.Results {
		out.Results[i].Document = nil // the engine's own
		if q.give {
			out.Results[i].Document = &documentText{q.texts[out.Results[i].Index]}
		}
	}
	switch q.format {
	case tei:
		return jsonscan.Marshal(out.asTEI())
	case voyage:
		return jsonscan.Marshal(out.asVoyage())
	}
	return jsonscan.Marshal(out)
}

type teiResult struct {
	Index int     `json:"index"`
	Score float64 `json:"score"`
	Text  *string `json:"text,omitempty"`
}

// asTEI returns the answer in the format of Text Embeddings Inference.
func (a answer) asTEI() []teiResult {
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

// asVoyage returns the answer in Voyage's format.
func (a answer) asVoyage() voyageAnswer {
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
