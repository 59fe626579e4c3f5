package mmcache

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"reveille/infra/catalog"
)

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
	return s.space.Ident(s.media, sha256.Sum256(s.raw), s.layout)
}

// TestIdentChangesWithEveryPart checks that equal inputs have equal identities, whatever ran before, and that any
// difference yields another one.
func TestIdentChangesWithEveryPart(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a, b := drawSample(r, "a"), drawSample(r, "b")
		again := a
		again.raw, again.layout.Tokens = bytes.Clone(a.raw), append([]uint32{}, a.layout.Tokens...)
		if again.ident() != a.ident() {
			t.Fatal("an identity changed")
		}
		same := a.space.Pool == b.space.Pool && a.space.Tenant == b.space.Tenant && a.space.Model == b.space.Model && a.space.Encoder == b.space.Encoder &&
			a.media == b.media && bytes.Equal(a.raw, b.raw) && a.layout.Width == b.layout.Width && fmt.Sprint(a.layout.Tokens) == fmt.Sprint(b.layout.Tokens)
		if (a.ident() == b.ident()) != same {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}
