package mmcache

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// An Entry is an encoder's output for one medium. It is immutable.
type Entry struct {
	Layout
	Floats     []byte        // little-endian 32-bit floats, all chunks in a row
	EncodeTime time.Duration // what a hit saves
}

// A value in Redis, little-endian:
//
//	[0]      format, 1
//	[1]      dtype: 1, 32-bit floats
//	[2]      packing: 1, zstd over the four byte planes of the floats (all first bytes, all second bytes, …)
//	[3]      zero
//	[4:8]    width
//	[8:12]   encode time in µs
//	[12:16]  number of chunks n
//	[16:16+4n] tokens of each chunk
//	…        packed floats
//	last 32  HMAC-SHA256 over the Redis key's name, a zero byte, the field, and all of the above
const (
	valueFormat = 1
	dtypeF32    = 1
	packPlanes  = 1
	fixedHeader = 16
	macSize     = sha256.Size
)

// Reasons for refusing a value. A refused value is a miss.
var (
	errTruncated = errors.New("truncated")
	errMAC       = errors.New("wrong MAC")
	errFormat    = errors.New("unknown format")
	errShape     = errors.New("wrong shape")
	errPacked    = errors.New("corrupt floats")
)

// macLabel separates the cache's key from other uses of the runner secret.
const macLabel = "reveille encoder cache v1"

// An entryCodec encodes entries as values for Redis and decodes them. It is safe for concurrent use.
type entryCodec struct {
	key [sha256.Size]byte
	enc *zstd.Encoder
	dec *zstd.Decoder
}

// newCodec creates a codec whose MAC key is derived from the pool's runner secret. It refuses entries with more than
// maxBytes of floats.
func newCodec(secret []byte, maxBytes int64) (*entryCodec, error) {
	c := &entryCodec{}
	m := hmac.New(sha256.New, secret)
	_, _ = m.Write([]byte(macLabel))
	m.Sum(c.key[:0])
	var err error
	if c.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithEncoderCRC(false)); err != nil {
		return nil, err
	}
	c.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(uint64(max(maxBytes, 1<<20))))
	return c, err
}

func (c *entryCodec) mac(sig Sig, id Ident, body []byte) []byte {
	m := hmac.New(sha256.New, c.key[:])
	_, _ = m.Write([]byte(redisKey(sig, id.Key)))
	_, _ = m.Write([]byte{0})
	_, _ = m.Write(id.Field[:])
	_, _ = m.Write(body)
	return m.Sum(nil)
}

// Encode returns the value of an entry for an identity.
func (c *entryCodec) Encode(sig Sig, id Ident, e *Entry) []byte {
	n := fixedHeader + 4*len(e.Tokens)
	v := make([]byte, fixedHeader, n+len(e.Floats)+macSize)
	v[0], v[1], v[2] = valueFormat, dtypeF32, packPlanes
	binary.LittleEndian.PutUint32(v[4:], e.Width)
	binary.LittleEndian.PutUint32(v[8:], uint32(min(e.EncodeTime.Microseconds(), 1<<32-1)))
	binary.LittleEndian.PutUint32(v[12:], uint32(len(e.Tokens)))
	for _, t := range e.Tokens {
		v = binary.LittleEndian.AppendUint32(v, t)
	}
	v = c.enc.EncodeAll(split(e.Floats), v)
	return append(v, c.mac(sig, id, v)...)
}

// Decode returns the entry in a value. The value must carry this pool's MAC for exactly this identity and have the
// wanted layout. Decode reads no byte of the payload before it has checked the MAC, and allocates no more than the
// layout requires.
func (c *entryCodec) Decode(sig Sig, id Ident, want Layout, v []byte) (*Entry, error) {
	if len(v) < fixedHeader+macSize {
		return nil, errTruncated
	}
	body, mac := v[:len(v)-macSize], v[len(v)-macSize:]
	if !hmac.Equal(mac, c.mac(sig, id, body)) {
		return nil, errMAC
	}
	if body[0] != valueFormat || body[1] != dtypeF32 || body[2] != packPlanes {
		return nil, errFormat
	}
	width, chunks := binary.LittleEndian.Uint32(body[4:]), int(binary.LittleEndian.Uint32(body[12:]))
	if chunks > maxChunks || len(body) < fixedHeader+4*chunks {
		return nil, errShape
	}
	tokens := make([]uint32, chunks)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(body[fixedHeader+4*i:])
	}
	size := want.Bytes()
	if width != want.Width || !slices.Equal(tokens, want.Tokens) || size == 0 {
		return nil, errShape
	}
	planes, err := c.dec.DecodeAll(body[fixedHeader+4*chunks:], make([]byte, 0, size))
	if err != nil || int64(len(planes)) != size {
		return nil, errPacked
	}
	return &Entry{
		Layout: want, Floats: join(planes),
		EncodeTime: time.Duration(binary.LittleEndian.Uint32(body[8:])) * time.Microsecond,
	}, nil
}

// split distributes the bytes of 32-bit values over four planes, by their position in the value: signs and exponents of
// floats resemble each other, their last bytes do not.
func split(b []byte) []byte {
	n := len(b) / 4
	out := make([]byte, 4*n)
	p0, p1, p2, p3 := out[:n], out[n:2*n], out[2*n:3*n], out[3*n:]
	for i := range n {
		v := binary.LittleEndian.Uint32(b[4*i:])
		p0[i], p1[i], p2[i], p3[i] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	return out
}

// join reverses split.
func join(planes []byte) []byte {
	n := len(planes) / 4
	out := make([]byte, 4*n)
	p0, p1, p2, p3 := planes[:n], planes[n:2*n], planes[2*n:3*n], planes[3*n:]
	for i := range n {
		binary.LittleEndian.PutUint32(out[4*i:], uint32(p0[i])|uint32(p1[i])<<8|uint32(p2[i])<<16|uint32(p3[i])<<24)
	}
	return out
}
