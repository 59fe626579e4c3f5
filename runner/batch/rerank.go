package batch

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"reveille/infra/jsonscan"
)

// RerankCutter shortens rerank requests that are too long for a model, which computes the query and one document as a
// single sequence. It is safe for concurrent use.
type RerankCutter struct {
	counter *counter
	longest int // tokens of a query and a document together
}

// NewRerankCutter asks a running engine how many tokens it adds to a query and a document. ctx bounds its calls. words
// may be nil.
func NewRerankCutter(ctx context.Context, e *HTTP, words *WordPiece, limits Limits) (*RerankCutter, error) {
	c, err := newCounter(ctx, e, words)
	if err != nil {
		return nil, err
	}
	own, err := e.Tokens(ctx, "a", false)
	if err != nil {
		return nil, err
	}
	status, response, err := e.post(ctx, "/v1/rerank", []byte(`{"query":"a","documents":["a"]}`), nil,
		smallCallTimeout, maxSmallResponse)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(response, &reply) != nil || status != 200 || reply.Usage.PromptTokens < 2*len(own) {
		return nil, fmt.Errorf("rerank of one document: status %d, %.200s", status, response)
	}
	const boundaries = 2 // margin: next to a special token, a text can have one token more than when it is counted alone
	return &RerankCutter{counter: c, longest: limits.Longest() - (reply.Usage.PromptTokens - 2*len(own)) - boundaries}, nil
}

// Cut returns a rerank request from the gateway with its texts truncated, if truncate is true and they are too long:
// the query to half of the model's maximum, each document to the rest, or to max_tokens_per_doc if that is less.
func (r *RerankCutter) Cut(ctx context.Context, body []byte) ([]byte, error) {
	var v [2]jsonscan.Value
	err := jsonscan.Scan(body, []string{"truncate", "max_tokens_per_doc"}, v[:])
	if err != nil || !v[0].Bool() || !v[1].Set() && len(body) <= r.longest { // a token has at least one byte
		return body, nil
	}
	var q struct {
		Query     string   `json:"query"`
		Documents []string `json:"documents"`
		Max       float64  `json:"max_tokens_per_doc"`
	}
	if json.Unmarshal(body, &q) != nil {
		return body, nil // the engine refuses it
	}
	query, n, err := r.cut(ctx, q.Query, r.longest/2)
	if err != nil {
		return nil, err
	}
	limit := r.longest - n
	if q.Max >= 1 {
		limit = int(min(float64(limit), q.Max))
	}
	cuts, ctx := errgroup.WithContext(ctx)
	cuts.SetLimit(maxTokenizerCalls)
	for i := range q.Documents {
		cuts.Go(func() (err error) {
			q.Documents[i], _, err = r.cut(ctx, q.Documents[i], limit)
			return err
		})
	}
	if err = cuts.Wait(); err != nil {
		return nil, err
	}
	documents, err := jsonscan.Marshal(q.Documents)
	if err == nil {
		body, err = jsonscan.SetString(body, "query", query)
	}
	if err == nil {
		body, err = jsonscan.Set(body, "documents", documents)
	}
	return body, err
}

// cut returns the beginning of a text, of at most limit tokens, and an upper bound of how many it has. It stops
// searching when the beginning has at least 98% of limit.
func (r *RerankCutter) cut(ctx context.Context, text string, limit int) (string, int, error) {
	if len(text) <= limit {
		return text, len(text), nil
	}
	count := func(text string) (int, error) {
		n, err := r.counter.count(ctx, []input{{text: text}})
		return n[0] - r.counter.specials, err
	}
	all, err := count(text)
	if err != nil || all <= limit {
		return text, all, err
	}
	long, longTokens := len(text), all // the shortest text known to be too long
	short, shortTokens := 0, 0         // the longest known to fit
	for range 16 {
		at := short + int(float64(long-short)*float64(limit-shortTokens)/float64(longTokens-shortTokens))
		for at > short && !utf8.RuneStart(text[at]) {
			at--
		}
		if at <= short {
			break
		}
		n, err := count(text[:at])
		if err != nil {
			return "", 0, err
		}
		if n > limit {
			long, longTokens = at, n
			continue
		}
		short, shortTokens = at, n
		if limit-n <= limit/50 {
			break
		}
	}
	return text[:short], shortTokens, nil
}
