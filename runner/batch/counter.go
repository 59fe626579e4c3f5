package batch

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
)

// maxTokenizerCalls bounds the concurrent tokenizer calls of all requests, which compete with the embeddings.
const maxTokenizerCalls = 4

// counter counts the tokens of texts as the model sees them: in process where that is exact, otherwise by asking the
// engine. It is safe for concurrent use.
type counter struct {
	engine   Engine
	words    *WordPiece    // nil: the engine counts all texts
	specials int           // tokens that the model adds to a text
	calls    chan struct{} // capacity maxTokenizerCalls
}

// newCounter asks the engine how many special tokens the model adds, and uses words only if it agrees with the engine.
func newCounter(ctx context.Context, e Engine, words *WordPiece) (*counter, error) {
	c := &counter{engine: e, calls: make(chan struct{}, maxTokenizerCalls)}
	var err error
	if c.specials, err = specialTokens(ctx, e); err != nil || words == nil {
		return c, err
	}
	const sample = "The Quick-Brown fox's 2nd jump, unquestionably 100% antidisestablishmentarian_zzyzx (really)!"
	want, err := e.Tokens(ctx, sample, true)
	if n, ok := words.Count(sample); ok && n+c.specials == len(want) {
		c.words = words
	}
	return c, err
}

// specialTokens returns how many tokens the model adds to a text. It tokenizes the empty text, or another one if the
// engine refuses that.
func specialTokens(ctx context.Context, e Engine) (int, error) {
	none, err := e.Tokens(ctx, "", true)
	var refusal *EngineError
	if !errors.As(err, &refusal) || refusal.Status/100 != 4 {
		return len(none), err
	}
	all, err := e.Tokens(ctx, "a", true)
	if err != nil {
		return 0, err
	}
	own, err := e.Tokens(ctx, "a", false)
	return len(all) - len(own), err
}

// truncate replaces a text with its first tokens, so that it has at most longest tokens, including the special ones.
func (c *counter) truncate(ctx context.Context, in input, longest int) (input, error) {
	own := in.ids
	var all []int64
	if !in.isIDs {
		var err error
		if own, err = c.tokens(ctx, in.text, false); err == nil {
			all, err = c.tokens(ctx, in.text, true)
		}
		if err != nil {
			return in, err
		}
	}
	first := 0 // where the text's own tokens begin in the list all
	for first+len(own) < len(all) && !slices.Equal(all[first:first+len(own)], own) {
		first++
	}
	ids := slices.Clone(own)
	if all != nil {
		added := len(all) - len(own)
		ids = slices.Concat(all[:first], own[:max(0, min(len(own), longest-added))], all[min(first+len(own), len(all)):])
	}
	ids = ids[:min(len(ids), longest)]
	raw, err := json.Marshal(ids)
	return input{raw: raw, ids: ids, isIDs: true}, err
}

// count returns the number of tokens of each input, at least 1.
func (c *counter) count(ctx context.Context, inputs []input) ([]int, error) {
	out := make([]int, len(inputs))
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(maxTokenizerCalls)
	for i := range inputs {
		in := &inputs[i]
		if in.isIDs {
			out[i] = len(in.ids)
			continue
		}
		if c.words != nil {
			if n, ok := c.words.Count(in.text); ok {
				out[i] = max(1, n+c.specials)
				continue
			}
		}
		calls.Go(func() error {
			tokens, err := c.tokens(ctx, in.text, true)
			out[i] = max(1, len(tokens))
			return err
		})
	}
	return out, calls.Wait()
}

// tokens asks the engine, when fewer than maxTokenizerCalls calls are open.
func (c *counter) tokens(ctx context.Context, text string, special bool) ([]int64, error) {
	select {
	case c.calls <- struct{}{}:
		defer func() { <-c.calls }()
		return c.engine.Tokens(ctx, text, special)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
