package batch

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// parallelCounts bounds the concurrent tokenizer calls of all requests together, which compete with the embeddings.
const parallelCounts = 4

// counter counts the tokens of texts as the model sees them: in process where that is exact, otherwise by asking the
// engine. It is safe for concurrent use.
type counter struct {
	engine   Engine
	words    *WordPiece    // nil means always ask
	specials int           // tokens that the model adds to a text
	asking   chan struct{} // capacity parallelCounts
}

// newCounter learns how many special tokens the model adds, and uses words only if it agrees with the engine.
func newCounter(ctx context.Context, e Engine, words *WordPiece) (*counter, error) {
	c := &counter{engine: e, asking: make(chan struct{}, parallelCounts)}
	var err error
	if c.specials, err = specialTokens(ctx, e); err != nil || words == nil {
		return c, err
	}
	const sample = "The Quick-Brown fox's 2nd jump, unquestionably 100% antidisestablishmentarian_zzyzx (really)!"
	want, err := e.Tokens(ctx, sample, true)
	if n, ok := words.Count(sample); ok && n+c.specials == want {
		c.words = words
	}
	return c, err
}

// specialTokens returns how many tokens the model adds to a text. It tokenizes the empty text, or another one if the
// engine refuses that.
func specialTokens(ctx context.Context, e Engine) (int, error) {
	n, err := e.Tokens(ctx, "", true)
	var refusal *EngineError
	if !errors.As(err, &refusal) || refusal.Status/100 != 4 {
		return n, err
	}
	all, err := e.Tokens(ctx, "a", true)
	if err != nil {
		return 0, err
	}
	own, err := e.Tokens(ctx, "a", false)
	return all - own, err
}

// count returns the number of tokens of each input, at least 1.
func (c *counter) count(ctx context.Context, inputs []input) ([]int, error) {
	out := make([]int, len(inputs))
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(parallelCounts)
	for i := range inputs {
		in := &inputs[i]
		if in.tokens {
			out[i] = in.count
			continue
		}
		if c.words != nil {
			if n, ok := c.words.Count(in.text); ok {
				out[i] = max(1, n+c.specials)
				continue
			}
		}
		calls.Go(func() error {
			select {
			case c.asking <- struct{}{}:
				defer func() { <-c.asking }()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			n, err := c.engine.Tokens(ctx, in.text, true)
			out[i] = max(1, n)
			return err
		})
	}
	return out, calls.Wait()
}
