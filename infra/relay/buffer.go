package relay

import "sync"

const (
	smallBuffer = 16 << 10 // a head, and the body of most answers
	bigBuffer   = 64 << 10 // bodies that fill a small one
)

// Buffers are shared by all clients of the process: a connection owns one only while it holds unread bytes, so an idle
// connection and a silent stream own none.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	bigBuffers   = sync.Pool{New: func() any { b := make([]byte, bigBuffer); return &b }}
)

func takeBuffer(big bool) *[]byte {
	if big {
		return bigBuffers.Get().(*[]byte)
	}
	return smallBuffers.Get().(*[]byte)
}

func giveBuffer(b *[]byte) {
	if len(*b) == bigBuffer {
		bigBuffers.Put(b)
	} else {
		smallBuffers.Put(b)
	}
}
