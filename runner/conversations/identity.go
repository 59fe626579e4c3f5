package conversations

import (
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
)

// Identity is a hash of everything that determines an engine's numbers: the model's name, the contents of its files and
// of the program, arguments, variables and GPUs. Only an engine with the same identity gets a saved state.
type Identity [sha256.Size]byte

// identify computes the engine's identity. If ctx ends first, the identity stays unknown.
func (e *Engine) identify(ctx context.Context) {
	h := sha256.New()
	fmt.Fprintf(h, "conversations v2 %s\n", runtime.GOARCH)
	for _, part := range e.parts {
		fmt.Fprintf(h, "%q\n", part)
	}
	for _, f := range e.files {
		c, err := e.store.contents.Digest(ctx, f)
		if err != nil {
			e.log.Warn("conversations will not be saved", "error", err)
			return
		}
		fmt.Fprintf(h, "file %x\n", c)
	}
	h.Sum(e.id[:0])
}

// awaitIdentity waits until the engine is identified. It returns false if it cannot be, or ctx ends.
func (e *Engine) awaitIdentity(ctx context.Context) bool {
	select {
	case <-e.identified:
		return e.id != Identity{}
	case <-ctx.Done():
		return false
	}
}
