package batch

import "sync"

const (
	keptBuffers = 16       // most buffers kept
	keptBytes   = 16 << 20 // largest capacity of a kept buffer
)

// buffers is a pool of byte slices that can be emptied. The zero value is ready to use.
type buffers struct {
	mu   sync.Mutex
	free [][]byte
}

// take returns an empty slice, perhaps with capacity.
func (p *buffers) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return nil
	}
	b := p.free[n-1]
	p.free[n-1] = nil
	p.free = p.free[:n-1]
	return b[:0]
}

// give returns a slice that nobody uses any more.
func (p *buffers) give(b []byte) {
	if cap(b) == 0 || cap(b) > keptBytes {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keptBuffers {
		p.free = append(p.free, b)
	}
}

// release drops all slices in the pool.
func (p *buffers) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = nil
}
