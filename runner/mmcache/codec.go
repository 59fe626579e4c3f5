package mmcache

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

// An Entry is an encoder's output for one medium. It is immutable.
type Entry struct {
	Layout
	Floats     []byte        // little-endian 32-bit floats, all chunks in a row
	EncodeTime time.Duration // the time that a hit saves
}

// A value in Redis, little-endian:
//
//	[0]      format, 2
//	[1:4]    zero
//	[4:8]    width
//	[8:12]   encode time in µs
//	[12:16]  number of chunks n
//	[16:16+4n] tokens of each chunk
//	…        32-bit floats
//	last 32  HMAC-SHA256 over the Redis key's name, a zero byte, and all of the above
const (
	valueFormat = 2
	fixedHeader = 16
	macSize     = sha256.Size
)

// errInvalid: a value is truncated, modified, of another version or shape, or not from this pool and for this medium.
// It counts as a miss.
var errInvalid = errors.New("invalid value")

// macLabel separates the cache's key from other uses of the runner secret.
const macLabel = "reveille encoder cache v1"

// An entryCodec encodes entries as values for Redis and decodes them. It is safe for concurrent use.
type entryCodec struct {
	pool string
	key  []byte
}

// newCodec creates a pool's codec, whose MAC key is derived from the pool's runner secret.
func newCodec(pool string, secret []byte) entryCodec {
	m := hmac.New(sha256.New, secret)
	_, _ = m.Write([]byte(macLabel))
	return entryCodec{pool, m.Sum(nil)}
}

func (c entryCodec) mac(sig Sig, id Ident, body []byte) []byte {
	m := hmac.New(sha256.New, c.key)
	_, _ = m.Write([]byte(redisKey(c.pool, sig, id)))
	_, _ = m.Write([]byte{0})
	_, _ = m.Write(body)
	return m.Sum(nil)
}

func (l Layout) digest() Digest { return sha256.Sum256((&Entry{Layout: l}).header()) }

// valueSize returns the size of the value of an entry with this layout.
func (l Layout) valueSize() int64 { return fixedHeader + 4*int64(len(l.Tokens)) + l.Bytes() + macSize }

// header returns the bytes before the floats.
func (e *Entry) header() []byte {
	v := make([]byte, fixedHeader, fixedHeader+4*len(e.Tokens)+len(e.Floats)+macSize)
	v[0] = valueFormat
	binary.LittleEndian.PutUint32(v[4:], e.Width)
	binary.LittleEndian.PutUint32(v[8:], uint32(min(e.EncodeTime.Microseconds(), 1<<32-1)))
	binary.LittleEndian.PutUint32(v[12:], uint32(len(e.Tokens)))
	for _, t := range e.Tokens {
		v = binary.LittleEndian.AppendUint32(v, t)
	}
	return v
}

// Encode returns the value of an entry for an identity.
func (c entryCodec) Encode(sig Sig, id Ident, e *Entry) []byte {
	v := append(e.header(), e.Floats...)
	return append(v, c.mac(sig, id, v)...)
}

// Decode returns the entry in a value. The value must carry this pool's MAC for exactly this identity and have the
// wanted layout.
func (c entryCodec) Decode(sig Sig, id Ident, want Layout, v []byte) (*Entry, error) {
	e := &Entry{Layout: want}
	start := fixedHeader + 4*len(want.Tokens)
	if want.Bytes() == 0 || int64(len(v)) != want.valueSize() {
		return nil, errInvalid
	}
	body, mac := v[:len(v)-macSize], v[len(v)-macSize:]
	e.EncodeTime = time.Duration(binary.LittleEndian.Uint32(body[8:])) * time.Microsecond
	if !hmac.Equal(mac, c.mac(sig, id, body)) || !slices.Equal(body[:start], e.header()) {
		return nil, errInvalid
	}
	e.Floats = body[start:]
	return e, nil
}
