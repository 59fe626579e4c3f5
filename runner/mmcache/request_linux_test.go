package mmcache

import (
	"encoding/hex"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/testenv/kit"
)

func TestRequestCountsItsOwnMedia(t *testing.T) {
	a := &Attachment{}
	check := func(what string, q *Request, hits, misses int64, exact bool) {
		t.Helper()
		if h, m, e := q.End(); h != hits || m != misses || e != exact {
			t.Errorf("%s: %d %d %v", what, h, m, e)
		}
	}
	one := a.Begin("", true)
	a.hits.Add(2)
	a.misses.Add(1)
	check("alone", one, 2, 1, true)
	first, second := a.Begin("", true), a.Begin("", true)
	a.hits.Add(1)
	check("overlapped by a later one", first, 1, 0, false)
	third := a.Begin("", true)
	check("started while another was open", second, 1, 0, false)
	check("started after another, which was still open", third, 0, 0, false)
	text := a.Begin("", false)
	check("alone among texts", a.Begin("", true), 0, 0, true)
	check("a text", text, 0, 0, false)
	check("none", nil, 0, 0, false)
}

// TestTenantsShareNothing checks that each tenant has its own entries and waits only for its own encodes. A look-up for
// a request that has ended, never existed, or is not named finds nothing and stores nothing.
func TestTenantsShareNothing(t *testing.T) {
	m, v, raw := Media{Image, 1, 1}, numbered(1), []byte{1, 2, 3}
	s := newServer(t, func(c *Config) { c.Library, c.LookupWait = "/lib/"+LibraryName, 200*time.Millisecond })
	attach := func(scope catalog.Sharing) *Attachment {
		model := modelOf("m.gguf+p.gguf")
		model.MMCache = scope
		a, err := s.Attach(model, fakeEncoder(t, "A"))
		if err != nil {
			t.Fatal(err)
		}
		a.Started()
		return a
	}
	byKey := attach(catalog.SharePerKey)
	as := func(a *Attachment, scope string) (*engineEnd, *Request) {
		t.Helper()
		q, x := a.Begin(scope, true), a.dial(t)
		if text := q.Token(); text != nil {
			if n, err := hex.Decode(x.token[:], text); err != nil || n != len(x.token) {
				t.Fatal(n, err)
			}
		}
		return x, q
	}
	ann, annsRequest := as(byKey, "ann")
	ben, _ := as(byKey, "ben")
	id := ann.lookup(t, m, raw, v.Layout).ident
	if got := ann.acquire(t, m, id, v.Layout, 0); got.status != statusMiss {
		t.Fatal(got.status)
	}
	bens := ben.lookup(t, m, raw, v.Layout).ident
	if bens == id {
		t.Fatal("one identity for two tenants")
	}
	if got := ben.acquire(t, m, bens, v.Layout, 60_000); got.status != statusMiss {
		t.Error("a tenant waited for another's encode:", got.status)
	}
	ann.send(t, opStore, item{media: m, layout: v.Layout, ident: id, bytes: uint64(len(v.Floats)), encodeUS: 1000}, 0, v.Floats)
	kit.Eventually(t, "a hit of the same tenant", func() bool { return ann.lookup(t, m, raw, v.Layout).status == statusHit })
	again, _ := as(byKey, "ann")
	if got := again.lookup(t, m, raw, v.Layout); got.status != statusHit {
		t.Error("another request of the same tenant:", got.status)
	}
	if got := ben.lookup(t, m, raw, v.Layout); got.status != statusMiss {
		t.Error("a tenant was served another's entry")
	}
	annsRequest.End()
	for name, tok := range map[string]token{"over": ann.token, "unknown": {9}, "none": {}} {
		x := byKey.dial(t)
		x.token = tok
		if got := x.lookup(t, m, raw, v.Layout); got.status != statusMiss || got.ident != (Ident{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}

	shared := attach(catalog.ShareAll)
	x, q := as(shared, "ann")
	if q.Token() != nil {
		t.Error("a token where none is needed")
	}
	x.insert(t, m, raw, v)
	other, _ := as(shared, "ben")
	kit.Eventually(t, "a hit of another tenant", func() bool { return other.lookup(t, m, raw, v.Layout).status == statusHit })
}
