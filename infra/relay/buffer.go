package relay

import "sync"

const (
	smallBuffer = 16 << 10  // fits most heads, and the body of most responses
	bigBuffer   = 128 << 10 // the longest head, and for bodies that fill a small one
)

// All clients of the process share these buffers. A connection has one only while it holds unread bytes, so idle
// connections and silent streams have none.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	bigBuffers   = sync.Pool{New: func() any { b := make([]byte, bigBuffer); return &b }}
)

func getBuffer(big bool) *[]byte {
	if big {
		return bigBuffers.Get().(*[]byte)
	}
	return smallBuffers.Get().(*[]byte)
}

func putBuffer(b *[]byte) {
	if len(*b) == bigBuffer {
		bigBuffers.Put(b)
	} else {
		smallBuffers.Put(b)
	}
}
