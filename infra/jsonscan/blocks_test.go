package jsonscan

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// withAndWithout runs a test in blocks, if this machine has them, and without.
func withAndWithout(t *testing.T, test func(t *testing.T)) {
	has := hasBlocks
	defer func() { hasBlocks = has }()
	for _, hasBlocks = range map[bool][]bool{true: {true, false}, false: {false}}[has] {
		test(t)
	}
}

// others are bytes next to those that the searches look for, or with one bit more.
var others = []byte{'a', 'Z', '^', 'z', '~', '|', ' ', '!', '#', 0, 0x1f, 0x7f, 0xa2, 0xdb, 0xdc, 0xfb, 0xff}

func TestSkipPlain(t *testing.T) {
	withAndWithout(t, func(t *testing.T) {
		for at := range 200 {
			for c := range 256 {
				b := bytes.Repeat([]byte{'a'}, 200)
				b[at] = byte(c)
				want, wide := len(b), c >= 0x80
				if c == '"' || c == '\\' || c < 0x20 {
					want = at
				}
				if got, w := SkipPlain(b, 0); got != want || w != wide {
					t.Fatalf("%q: %d, %v; want %d, %v", b, got, w, want, wide)
				}
			}
		}
		for seed := range uint64(2000) {
			r := rand.New(rand.NewPCG(seed, 0))
			b := make([]byte, r.IntN(300))
			for i := range b {
				b[i] = byte(0x20 + r.IntN(2))
			}
			for range r.IntN(3) {
				if len(b) > 0 {
					b[r.IntN(len(b))] = others[r.IntN(len(others))]
				}
			}
			from := r.IntN(len(b) + 1)
			end, wide := from, false
			for ; end < len(b) && b[end] != '"' && b[end] != '\\' && b[end] >= 0x20; end++ {
				wide = wide || b[end] >= 0x80
			}
			if got, w := SkipPlain(b, from); got != end || w != wide {
				t.Fatalf("%q from %d: %d, %v; want %d, %v", b, from, got, w, end, wide)
			}
		}
	})
}

func TestIndexBracket(t *testing.T) {
	withAndWithout(t, func(t *testing.T) {
		for _, size := range []int{20, 150} {
			for at := range size {
				for c := range 256 {
					for _, rest := range others {
						b := bytes.Repeat([]byte{rest}, size)
						b[at] = byte(c)
						want := -1
						if bytes.IndexByte([]byte(`[]{}\`), byte(c)) >= 0 {
							want = at
						}
						if got := IndexBracket(b); got != want {
							t.Fatalf("%q: %d, want %d", b, got, want)
						}
					}
				}
			}
		}
	})
}
