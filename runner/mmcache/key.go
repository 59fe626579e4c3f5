package mmcache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"github.com/zeebo/xxh3"
)

// A Sig is a model's signature. infra/catalog computes it from the model's stable id, once per load.
type Sig uint64

// A Key is the 64-bit part of a medium's identity: it finds an entry but proves nothing.
type Key uint64

// A Kind is the kind of a medium.
type Kind uint8

// Kinds, with their numbers in the header.
const (
	Image Kind = 1 // RGB8, row by row
	Audio Kind = 2 // 32-bit little-endian floats, one channel
)

// Media describes raw media bytes. A and B are the width and height of an image, or the sample rate and channels of a
// sound.
type Media struct {
	Kind Kind
	A, B uint32
}

const (
	headerVersion = 2
	headerSize    = 20
)

// Header returns what a key hashes before the media bytes.
func (m Media) Header(sig Sig) [headerSize]byte {
	h := [headerSize]byte{0: headerVersion, 1: byte(m.Kind)}
	binary.LittleEndian.PutUint32(h[4:], m.A)
	binary.LittleEndian.PutUint32(h[8:], m.B)
	binary.LittleEndian.PutUint64(h[12:], uint64(sig))
	return h
}

// redisKey returns the name of the hash that holds a pool's entries of a key.
func redisKey(pool string, sig Sig, k Key) string {
	return fmt.Sprintf("mm:%s:%016x:%016x", pool, uint64(sig), uint64(k))
}

// A Layout is the shape of an encoder's output for one medium: Width is the floats per token, Tokens the tokens of
// each chunk (a medium is one chunk, or several slices).
type Layout struct {
	Width  uint32
	Tokens []uint32
}

// Limits of a layout. Anything beyond them is not cached.
const (
	maxWidth  = 1 << 16
	maxTokens = 1 << 20
	maxChunks = 4096
)

// Bytes returns the size of the floats, or 0 for an impossible layout.
func (l Layout) Bytes() int64 {
	var sum int64
	if l.Width == 0 || l.Width > maxWidth || len(l.Tokens) == 0 || len(l.Tokens) > maxChunks {
		return 0
	}
	for _, t := range l.Tokens {
		if t == 0 || t > maxTokens {
			return 0
		}
		sum += int64(t)
	}
	return sum * int64(l.Width) * 4
}

// A Namespace is a set of entries that may be shared: its media are encoded alike, and their senders may learn of each
// other.
type Namespace struct {
	Pool    string // pools share nothing
	Tenant  string // tenant, "" if all requests share entries
	Model   string // stable id, including the projector
	Encoder Digest // content of the projector, the engine's build and everything else that affects the encoder's numbers
	Sig     Sig    // of Model
}

// An Ident names one medium's entry: Key finds it, Field proves it.
type Ident struct {
	Key   Key
	Field [sha256.Size]byte
}

// identFormat is the version in the strong digest. A new version separates new entries from old ones.
const identFormat = 2

// Ident returns the identity of a medium, given its key and the SHA-256 of its raw bytes. The field is a SHA-256 over
// everything that must agree before a result may be reused.
func (s Namespace) Ident(k Key, m Media, content [sha256.Size]byte, l Layout) Ident {
	h := sha256.New()
	part := func(tag byte, data []byte) { writePart(h, tag, data) }
	u32 := func(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
	part(1, []byte{identFormat})
	part(2, []byte(s.Pool))
	part(3, []byte(s.Model))
	part(4, s.Encoder[:])
	part(5, []byte{byte(m.Kind)})
	part(6, u32(m.A))
	part(7, u32(m.B))
	part(8, content[:])
	part(9, u32(l.Width))
	tokens := make([]byte, 0, 4*len(l.Tokens))
	for _, t := range l.Tokens {
		tokens = binary.LittleEndian.AppendUint32(tokens, t)
	}
	part(10, tokens)
	part(11, []byte(s.Tenant))
	id := Ident{Key: k}
	h.Sum(id.Field[:0])
	return id
}

// hashMedia reads n raw bytes and returns their key and digest. buf is scratch space.
func hashMedia(sig Sig, m Media, r io.Reader, n int64, buf []byte) (Key, [sha256.Size]byte, error) {
	header := m.Header(sig)
	x, s := xxh3.New(), sha256.New()
	_, _ = x.Write(header[:])
	var sum [sha256.Size]byte
	got, err := io.CopyBuffer(hashes{x, s}, io.LimitReader(r, n), buf)
	if err != nil {
		return 0, sum, err
	}
	if got != n {
		return 0, sum, io.ErrUnexpectedEOF
	}
	s.Sum(sum[:0])
	return Key(x.Sum64()), sum, nil
}

type hashes [2]hash.Hash

func (h hashes) Write(p []byte) (int, error) {
	_, _ = h[0].Write(p)
	return h[1].Write(p)
}
