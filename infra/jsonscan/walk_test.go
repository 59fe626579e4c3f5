package jsonscan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// rebuild decodes a value through a walk.
func rebuild(w *Walk) any {
	switch w.Kind() {
	case Object:
		m := map[string]any{}
		w.Object(func(name []byte) bool { m[string(name)] = rebuild(w); return true })
		return m
	case Array:
		list := []any{}
		w.Array(func() bool { list = append(list, rebuild(w)); return true })
		return list
	}
	var v any
	_ = json.Unmarshal(w.Raw().Raw, &v)
	return v
}

// A walk finds what encoding/json finds, and Raw passes exactly one value.
func TestWalkAgainstMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(document().Filter(func(s string) bool { return valid([]byte(s)) }).Draw(t, "document"))
		var want any
		if err := json.Unmarshal(body, &want); err != nil {
			t.Skip("a number that no double holds")
		}
		w := WalkOf(body)
		if got := rebuild(&w); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: walked %v, want %v", body, got, want)
		}
		w = WalkOf(body)
		if raw := w.Raw().Raw; !bytes.Equal(raw, bytes.TrimSpace(body)) {
			t.Fatalf("%s: passed %s", body, raw)
		}
	})
}

// A walk of anything ends.
func FuzzWalk(f *testing.F) {
	for _, text := range []string{`{"a":[1,{"b":"c\\"}],"d":nul}`, `{"`, `{"\"`, `{"\u12":"\u"`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := WalkOf(body)
		rebuild(&w)
	})
}

// Blanked members are gone for every reader, and nothing else is.
func TestBlankAgainstMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(document().Filter(func(s string) bool { return valid([]byte(s)) }).Draw(t, "document"))
		drop := map[string]bool{}
		for _, name := range asked {
			drop[name] = rapid.Bool().Draw(t, name)
		}
		want := decode(t, body)
		for name := range drop {
			if drop[name] {
				delete(want, name)
			}
		}
		m, err := Open(body)
		if err != nil {
			t.Fatal(err)
		}
		var places []Span
		for m.Next() {
			if drop[string(m.Name())] {
				places = append(places, m.Span())
			}
		}
		if m.Err() != nil {
			t.Fatal(m.Err())
		}
		Blank(body, places)
		if got := decode(t, body); !reflect.DeepEqual(got, want) {
			t.Fatalf("left %s, want %v", body, want)
		}
	})
}
