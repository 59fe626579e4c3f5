package main

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// rerank is POST /v1/rerank: the score is the share of the query's words that the
// document has.
func (c *call) rerank() {
	var q struct {
		Query     string            `json:"query"`
		Documents []json.RawMessage `json:"documents"`
		TopN      *int              `json:"top_n"`
	}
	if !c.decode(&q) {
		return
	}
	if q.Query == "" || len(q.Documents) == 0 || q.TopN != nil && *q.TopN < 1 {
		c.fail(http.StatusBadRequest, "invalid_request_error", "'query' and 'documents' must be given, 'top_n' be at least 1")
		return
	}
	type result struct {
		Index int     `json:"index"`
		Score float64 `json:"relevance_score"`
	}
	results := make([]result, len(q.Documents))
	tokens := 0
	for i, raw := range q.Documents {
		text, ok := documentText(raw)
		if !ok {
			c.fail(http.StatusBadRequest, "invalid_request_error", "a document must be a string or an object with 'text'")
			return
		}
		tokens += countTokens(q.Query) + countTokens(text)
		results[i] = result{i, overlap(q.Query, text)}
	}
	if !c.admit(tokens) {
		return
	}
	slices.SortStableFunc(results, func(a, b result) int { return cmp.Compare(b.Score, a.Score) })
	if q.TopN != nil {
		results = results[:min(*q.TopN, len(results))]
	}
	c.reply(map[string]any{
		"object": "list", "model": c.s.cfg.Alias, "results": results,
		"usage": map[string]any{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

func documentText(raw json.RawMessage) (string, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var doc struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &doc) != nil || doc.Text == nil {
		return "", false
	}
	return *doc.Text, true
}

// overlap is the share of the query's different words that occur in text, 0 to 1.
func overlap(query, text string) float64 {
	has := map[string]bool{}
	for _, w := range strings.Fields(strings.ToLower(text)) {
		has[w] = true
	}
	asked, found := map[string]bool{}, 0
	for _, w := range strings.Fields(strings.ToLower(query)) {
		if !asked[w] && has[w] {
			found++
		}
		asked[w] = true
	}
	return float64(found) / float64(max(1, len(asked)))
}
