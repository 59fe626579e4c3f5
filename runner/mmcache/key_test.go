package mmcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"reveille/infra/catalog"
)

// keyOf returns the key of a medium: xxh3-64, seed 0, over the header and the raw bytes.
func keyOf(sig Sig, m Media, raw []byte) Key {
	h := m.Header(sig)
	x := xxh3.New()
	_, _ = x.Write(h[:])
	_, _ = x.Write(raw)
	return Key(x.Sum64())
}

// TestKeyVectors pins signatures, headers and keys, since pools of different versions share them. Another
// implementation of xxh3 produced the file.
func TestKeyVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/keys.tsv")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(f) != 9 {
			continue
		}
		n++
		num := func(s string) uint32 {
			v, err := strconv.ParseUint(s, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			return uint32(v)
		}
		model := modelOf(f[4])
		if model.StableID() != f[4] {
			t.Fatalf("%s: stable id %s, want %s", f[0], model.StableID(), f[4])
		}
		sig := Sig(model.Signature())
		if got := fmt.Sprintf("%016x", uint64(sig)); got != f[5] {
			t.Errorf("%s: signature %s, want %s", f[0], got, f[5])
		}
		m := Media{Kind(num(f[1])), num(f[2]), num(f[3])}
		if h := m.Header(sig); hex.EncodeToString(h[:]) != f[6] {
			t.Errorf("%s: header %x, want %s", f[0], h, f[6])
		}
		raw, err := hex.DecodeString(f[7])
		if err != nil {
			t.Fatal(err)
		}
		k := keyOf(sig, m, raw)
		if got := redisKey("main", sig, k); got != "mm:main:"+f[5]+":"+f[8] {
			t.Errorf("%s: %s, want key %s", f[0], got, f[8])
		}
		streamed, sum, err := hashMedia(sig, m, bytes.NewReader(raw), int64(len(raw)), make([]byte, 5))
		if err != nil || streamed != k || sum != sha256.Sum256(raw) {
			t.Errorf("%s: streamed %x %v", f[0], streamed, err)
		}
	}
	if n != 7 {
		t.Errorf("%d vectors", n)
	}
}

// modelOf returns a model with a stable id.
func modelOf(id string) *catalog.Model {
	checkpoint, mmproj, _ := strings.Cut(id, "+")
	if strings.Contains(checkpoint, "/") {
		checkpoint = "hf://" + checkpoint
	}
	return &catalog.Model{Checkpoint: checkpoint, MMProj: "some/where/" + mmproj, MMCache: catalog.ShareAll}
}

type sample struct {
	space  Namespace
	media  Media
	raw    []byte
	layout Layout
}

func drawSample(r *rapid.T, label string) sample {
	space := Namespace{
		Pool:    rapid.StringN(0, 3, -1).Draw(r, label+" pool"),
		Tenant:  rapid.StringN(0, 3, -1).Draw(r, label+" scope"),
		Model:   rapid.StringN(0, 3, -1).Draw(r, label+" model"),
		Encoder: Digest{rapid.Byte().Draw(r, label+" encoder")},
		Sig:     Sig(rapid.Uint64Range(0, 3).Draw(r, label+" sig")),
	}
	return sample{
		space: space,
		media: Media{Kind(rapid.IntRange(1, 2).Draw(r, label+" kind")), rapid.Uint32Range(1, 3).Draw(r, label+" a"), rapid.Uint32Range(1, 3).Draw(r, label+" b")},
		raw:   rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(r, label+" raw"),
		layout: Layout{rapid.Uint32Range(1, 2).Draw(r, label+" width"),
			rapid.SliceOfN(rapid.Uint32Range(1, 3), 1, 3).Draw(r, label+" tokens")},
	}
}

func (s sample) ident() Ident {
	return s.space.Ident(keyOf(s.space.Sig, s.media, s.raw), s.media, sha256.Sum256(s.raw), s.layout)
}

// TestIdentProperty checks that equal inputs have equal identities, whatever ran before, and that any difference
// yields another field.
func TestIdentProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a, b := drawSample(r, "a"), drawSample(r, "b")
		again := a
		again.raw, again.layout.Tokens = bytes.Clone(a.raw), append([]uint32{}, a.layout.Tokens...)
		if again.ident() != a.ident() {
			t.Fatal("an identity changed")
		}
		same := a.space.Pool == b.space.Pool && a.space.Tenant == b.space.Tenant && a.space.Model == b.space.Model && a.space.Encoder == b.space.Encoder &&
			a.media == b.media && bytes.Equal(a.raw, b.raw) && a.layout.Width == b.layout.Width && fmt.Sprint(a.layout.Tokens) == fmt.Sprint(b.layout.Tokens)
		if (a.ident().Field == b.ident().Field) != same {
			t.Fatalf("%+v and %+v", a, b)
		}
		keySame := a.space.Sig == b.space.Sig && a.media == b.media && bytes.Equal(a.raw, b.raw)
		if (keyOf(a.space.Sig, a.media, a.raw) == keyOf(b.space.Sig, b.media, b.raw)) != keySame {
			t.Fatalf("keys of %+v and %+v", a, b)
		}
	})
}

func FuzzKey(f *testing.F) {
	f.Add(uint64(1), byte(1), uint32(2), uint32(3), []byte("raw"))
	f.Fuzz(func(t *testing.T, sig uint64, kind byte, a, b uint32, raw []byte) {
		m := Media{Kind(kind), a, b}
		k, _, err := hashMedia(Sig(sig), m, bytes.NewReader(raw), int64(len(raw)), make([]byte, 7))
		if err != nil || k != keyOf(Sig(sig), m, raw) {
			t.Fatalf("%x %v", k, err)
		}
	})
}
