package batches

import (
	"context"
	"time"
)

// Memory counts what a line holds in memory, its body and its response, within the share of all lines
// (Config.MaxHeld). One goroutine uses it at a time.
type Memory struct {
	s    *Service
	ctx  context.Context // of the line's run
	turn chan struct{}   // closed once all lines before it have their outcomes

	beyond bool // it holds Service.beyond
}

// memoryPoll is how often a line looks whether the share has room.
const memoryPoll = 50 * time.Millisecond

// Reserve counts n bytes, until Release. It waits until the share has room for them, because outcomes that wait for
// those of earlier lines can fill it. So the line whose turn it is may exceed the share: one line at a time. The error
// is that of a run that ends first.
func (m *Memory) Reserve(n int) error {
	for {
		if m.s.held.Add(int64(n)) <= m.s.cfg.MaxHeld || m.mayExceed() {
			return nil
		}
		m.Release(n)
		if err := pause(m.ctx, memoryPoll); err != nil {
			return err
		}
	}
}

func (m *Memory) mayExceed() bool {
	if m.beyond {
		return true
	}
	select {
	case <-m.turn:
	default:
		return false
	}
	select {
	case m.s.beyond <- struct{}{}:
		m.beyond = true
	default:
	}
	return m.beyond
}

// Release undoes Reserve for n bytes.
func (m *Memory) Release(n int) { m.s.held.Add(-int64(n)) }

// end lets another line exceed the share. The line has ended, and released all.
func (m *Memory) end() {
	if m.beyond {
		<-m.s.beyond
	}
}

// pause waits for d. The error is the cause of ctx's end.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
