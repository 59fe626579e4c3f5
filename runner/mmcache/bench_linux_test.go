package mmcache

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"reveille/infra/catalog"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// encoded returns the output of a tower's real encoder for a picture.
func encoded(b *testing.B, m *catalog.Model) *Entry {
	b.Helper()
	s := newServer(b, nil)
	l := startLlama(b, m, s, "-np 1 -t 1")
	defer l.stop()
	l.mustAsk(testenv.Picture(1, 640, 480))
	l.mustAsk(testenv.Picture(2, 640, 480)) // the first encode is slower
	if s.l1.order.Len() == 0 {
		b.Fatal("nothing was cached")
	}
	return s.l1.order.Front().Value.(*lruItem).entry
}

func tower896(b *testing.B) *catalog.Model {
	m, _ := visionModels(b)
	big := *m
	big.MMProj = testenv.Models(b).GemmaVision896
	return &big
}

// BenchmarkPacking compares ways to pack the floats of a real encoder. doc.go has the table.
func BenchmarkPacking(b *testing.B) {
	e := encoded(b, tower896(b))
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		b.Fatal(err)
	}
	better, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		b.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		b.Fatal(err)
	}
	unpack := func(p []byte) []byte {
		out, err := dec.DecodeAll(p, nil)
		if err != nil {
			b.Fatal(err)
		}
		return out
	}
	for _, c := range []struct {
		name   string
		pack   func([]byte) []byte
		unpack func([]byte) []byte
	}{
		{"plain", func(f []byte) []byte { return enc.EncodeAll(f, nil) }, unpack},
		{"planes", func(f []byte) []byte { return enc.EncodeAll(split(f), nil) }, func(p []byte) []byte { return join(unpack(p)) }},
		{"planes-default", func(f []byte) []byte { return better.EncodeAll(split(f), nil) }, func(p []byte) []byte { return join(unpack(p)) }},
		{"f16", func(f []byte) []byte { return enc.EncodeAll(split16(half(f)), nil) }, unpack},
	} {
		packed := c.pack(e.Floats)
		b.Run(c.name+"/in", func(b *testing.B) {
			b.SetBytes(int64(len(e.Floats)))
			for b.Loop() {
				c.pack(e.Floats)
			}
			b.ReportMetric(float64(len(e.Floats))/float64(len(packed)), "ratio")
		})
		b.Run(c.name+"/out", func(b *testing.B) {
			b.SetBytes(int64(len(e.Floats)))
			for b.Loop() {
				c.unpack(packed)
			}
		})
	}
}

// half turns 32-bit floats into 16-bit floats, rounding towards zero: good enough to compare sizes.
func half(f []byte) []byte {
	out := make([]byte, len(f)/2)
	for i := 0; i < len(f); i += 4 {
		bits := binary.LittleEndian.Uint32(f[i:])
		exp := int(bits>>23&0xff) - 127 + 15
		h := uint16(bits >> 16 & 0x8000)
		if exp > 0 && exp < 31 {
			h |= uint16(exp)<<10 | uint16(bits>>13&0x3ff)
		}
		binary.LittleEndian.PutUint16(out[i/2:], h)
	}
	return out
}

func split16(b []byte) []byte {
	n := len(b) / 2
	out := make([]byte, 2*n)
	for i := range n {
		out[i], out[n+i] = b[2*i], b[2*i+1]
	}
	return out
}

// BenchmarkCodec measures a complete value, including its MAC.
func BenchmarkCodec(b *testing.B) {
	c, err := newCodec([]byte("s"), 1<<26)
	if err != nil {
		b.Fatal(err)
	}
	e := randomEntry(256, 640)
	v := c.Encode(1, Ident{}, e)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(e.Floats)))
		b.ReportAllocs()
		for b.Loop() {
			c.Encode(1, Ident{}, e)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(e.Floats)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Decode(1, Ident{}, e.Layout, v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// randomEntry returns noise with the spread of an encoder's output.
func randomEntry(tokens, width uint32) *Entry {
	r := rand.New(rand.NewPCG(1, 1))
	e := &Entry{Layout: Layout{Width: width, Tokens: []uint32{tokens}}, EncodeTime: time.Second}
	e.Floats = make([]byte, e.Bytes())
	for i := 0; i < len(e.Floats); i += 4 {
		binary.LittleEndian.PutUint32(e.Floats[i:], math.Float32bits(float32(r.NormFloat64())))
	}
	return e
}

// BenchmarkHash measures a key and a digest per MiB of media.
func BenchmarkHash(b *testing.B) {
	raw := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	buf := make([]byte, hashBuffer)
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, _, err := hashMedia(1, Media{Image, 1, 1}, bytes.NewReader(raw), int64(len(raw)), buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLookup measures a look-up as an engine sees it, without the engine's own copy of the picture: 2.3 MiB of
// pixels in, the 640 KiB of an 896-pixel tower out.
func BenchmarkLookup(b *testing.B) {
	for _, tier := range []string{"l1", "l2", "miss"} {
		b.Run(tier, func(b *testing.B) {
			s := newServer(b, func(c *Config) {
				c.Redis = redisClient(b, testenv.Redis(b))
				if tier != "l1" {
					c.Bytes = -1
				}
			})
			x := dialEngine(b, s, Namespace{Pool: "main", Model: "m"})
			e := randomEntry(256, 640)
			raw := bytes.Repeat([]byte{7}, 896*896*3)
			media := Media{Image, 896, 896}
			if tier != "miss" {
				x.insert(b, media, raw, e)
				kit.Eventually(b, "the write behind", func() bool { return s.m.redisWritten.Get() > 0 })
			}
			b.SetBytes(int64(len(raw)))
			b.ResetTimer()
			for b.Loop() {
				got := x.lookup(b, media, raw, e.Layout)
				if (got.result == resultHit) != (tier != "miss") {
					b.Fatal(got.result)
				}
			}
		})
	}
}

// BenchmarkFirstToken measures what a client sees: a real engine, one picture, one token.
func BenchmarkFirstToken(b *testing.B) {
	small, _ := visionModels(b)
	for _, m := range []struct {
		name  string
		model *catalog.Model
	}{{"448", small}, {"896", tower896(b)}} {
		for _, tier := range []string{"off", "miss", "l1", "l2"} {
			b.Run(m.name+"/"+tier, func(b *testing.B) {
				var s *Server
				if tier != "off" {
					s = newServer(b, func(c *Config) {
						c.Redis = redisClient(b, testenv.Redis(b))
						if tier == "l2" {
							c.Bytes = -1
						}
					})
				}
				l := startLlama(b, m.model, s, "-np 1 -t 1")
				l.tokens = 1
				l.mustAsk(testenv.Picture(0, 640, 480))
				if tier == "l2" {
					kit.Eventually(b, "the write behind", func() bool { return s.m.redisWritten.Get() > 0 })
				}
				seed := uint64(0)
				b.ResetTimer()
				for b.Loop() {
					if tier == "off" || tier == "miss" {
						seed++
					}
					b.StopTimer()
					p := testenv.Picture(seed, 640, 480)
					b.StartTimer()
					l.mustAsk(p)
				}
				if s != nil {
					h, misses := l.a.Counts()
					b.ReportMetric(float64(h)/float64(h+misses), "hits/media")
					if h > 0 {
						b.ReportMetric(s.m.saved.Get()*1e3/float64(h), "encoder-ms/hit")
					}
				}
			})
		}
	}
}

// An engineEnd speaks the engine's side of the protocol in Go.
type engineEnd struct {
	c     *net.UnixConn
	token token // of the request it serves
}

// identified completes an attachment's space.
func identified(a *Attachment) {
	a.known = true
	close(a.decided)
}

func dialEngine(t testing.TB, s *Server, sp Namespace) *engineEnd {
	t.Helper()
	a, err := s.listen("m", sp, identified)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Detach)
	return a.dial(t)
}

func (a *Attachment) dial(t testing.TB) *engineEnd {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &engineEnd{c: c}
}
