package batch

import (
	"context"
	"errors"
	"sync"

	"github.com/zeebo/xxh3"
)

const (
	// askAtOnce bounds the concurrent tokenizer calls of one request.
	askAtOnce = 4
	// remembered is the number of texts in each of the cache's two generations.
	remembered = 16 << 10
)

// counter counts the tokens of texts as the model sees them: in process where that is exact, otherwise from the cache
// or by asking the engine. It is safe for concurrent use.
type counter struct {
	engine   Engine
	words    *WordPiece // nil means always ask
	specials int        // tokens that the model adds to a text

	mu       sync.Mutex
	now, old map[xxh3.Uint128]int32 // texts by hash; old is dropped when now is full
}

// newCounter learns how many special tokens the model adds, and uses words only if it agrees with the engine.
func newCounter(ctx context.Context, e Engine, words *WordPiece) (*counter, error) {
	c := &counter{engine: e, now: map[xxh3.Uint128]int32{}}
	var err error
	if c.specials, err = specialTokens(ctx, e); err != nil {
		return nil, err
	}
	if words == nil {
		return c, nil
	}
	const sample = "The Quick-Brown fox's 2nd jump, unquestionably 100% antidisestablishmentarian_zzyzx (really)!"
	want, err := e.Tokens(ctx, []byte(sample), true)
	if err != nil {
		return nil, err
	}
	if n, ok := words.Count([]byte(sample)); ok && n+c.specials == want {
		c.words = words
	}
	return c, nil
}

// specialTokens returns how many tokens the model adds to a text. It tokenizes the empty text, or another one if the
// engine refuses that.
func specialTokens(ctx context.Context, e Engine) (int, error) {
	n, err := e.Tokens(ctx, nil, true)
	var refusal *EngineError
	if !errors.As(err, &refusal) || refusal.Status/100 != 4 {
		return n, err
	}
	other := []byte("a")
	all, err := e.Tokens(ctx, other, true)
	if err != nil {
		return 0, err
	}
	own, err := e.Tokens(ctx, other, false)
	return all - own, err
}

// count writes the number of tokens of each input to out, at least 1.
func (c *counter) count(ctx context.Context, inputs []input, out []int) error {
	var ask []int
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
		if n, ok := c.lookUp(in.text); ok {
			out[i] = n
			continue
		}
		ask = append(ask, i)
	}
	if len(ask) == 0 {
		return nil
	}
	return c.askAll(ctx, inputs, out, ask)
}

// askAll asks the engine about the inputs listed in ask, several at a time.
func (c *counter) askAll(ctx context.Context, inputs []input, out, ask []int) error {
	one := func(i int) error {
		n, err := c.engine.Tokens(ctx, inputs[i].text, true)
		if err == nil {
			out[i] = max(1, n)
			c.remember(inputs[i].text, out[i])
		}
		return err
	}
	if len(ask) == 1 {
		return one(ask[0])
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan int, len(ask))
	for _, i := range ask {
		todo <- i
	}
	close(todo)
	var wg sync.WaitGroup
	for range min(askAtOnce, len(ask)) {
		wg.Go(func() {
			for i := range todo {
				if err := one(i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (c *counter) lookUp(text []byte) (int, bool) {
	key := xxh3.Hash128(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.now[key]
	if !ok {
		if n, ok = c.old[key]; ok {
			c.storeLocked(key, n)
		}
	}
	return int(n), ok
}

func (c *counter) remember(text []byte, n int) {
	key := xxh3.Hash128(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storeLocked(key, int32(n))
}

func (c *counter) storeLocked(key xxh3.Uint128, n int32) {
	if len(c.now) >= remembered {
		c.old, c.now = c.now, make(map[xxh3.Uint128]int32, remembered)
	}
	c.now[key] = n
}
