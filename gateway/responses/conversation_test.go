package responses

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
)

func TestItems(t *testing.T) {
	const hi = `{"role":"user","content":"hi"}`
	for _, c := range []struct{ input, before, want string }{
		{`"hi"`, `null`, `[` + hi + `]`},
		{`"hi"`, `[]`, `[` + hi + `]`},
		{`"hi"`, ` [ 1 ] `, `[1,` + hi + `]`},
		{` [ ] `, `[1]`, `[1]`},
		{`[2,3]`, `[1]`, `[1,2,3]`},
		{`[2]`, `null`, `[2]`},
	} {
		q, err := StoreOf([]byte(`{"input":` + c.input + `,"store":null,"previous_response_id":null}`))
		if err != nil || q.Previous != "" || !q.Wanted {
			t.Fatalf("%+v %v", q, err)
		}
		if _, err := q.References(); err != nil {
			t.Fatal(err)
		}
		var before []json.RawMessage
		if err := json.Unmarshal([]byte(c.before), &before); err != nil {
			t.Fatal(err)
		}
		if got := string(q.Items(before)); got != c.want {
			t.Errorf("%s after %s: %s, want %s", c.input, c.before, got, c.want)
		}
	}
}

// References to one item, each a few bytes, do not make a large conversation before its size is allowed, nor are there
// more of them than items.
func TestReferences(t *testing.T) {
	of := func(n int) (q Store, ids []string, err error) {
		if q, err = StoreOf([]byte(`{"input":[` + strings.Repeat(`{"type":"item_reference","id":"msg_A"},`, n) + `"last"]}`)); err != nil {
			t.Fatal(err)
		}
		ids, err = q.References()
		return q, ids, err
	}
	q, _, _ := of(2)
	items := map[string]json.RawMessage{"msg_A": []byte(`"first"`)}
	if err := q.Resolve(items, func(int) error { return nil }); err != nil || string(q.Items(nil)) != `["first","first","last"]` {
		t.Errorf("%s %v", q.Items(nil), err)
	}

	q, _, _ = of(2000)
	items["msg_A"] = make([]byte, 1<<20)
	refused := errors.New("refused")
	held := 0
	if err := q.Resolve(items, func(size int) error { held = size; return refused }); !errors.Is(err, refused) || held < 2000<<20 {
		t.Errorf("%v: %d bytes were to be held", err, held)
	}

	if _, ids, err := of(api.MaxItems); err != nil || len(ids) != api.MaxItems {
		t.Errorf("%d references: %v", len(ids), err)
	}
	if _, ids, err := of(api.MaxItems + 1); !errors.Is(err, api.InvalidType) || len(ids) > api.MaxItems {
		t.Errorf("%d references: %v", len(ids), err)
	}
}

// What is stored can be continued, also where the model said nothing.
func TestStored(t *testing.T) {
	for engine, want := range map[string]string{
		`{"choices":[{"message":{"content":null}}]}`: `["before"]`,
		`{"choices":[{"message":{"content":"a"}}]}`: `["before",{"id":"msg_x0","type":"message","status":"completed","role":"assistant",` +
			`"content":[{"type":"output_text","text":"a","annotations":[],"logprobs":[]}]}]`,
	} {
		var stored Stored
		f := &ResponseWriter{ID: "x", Now: time.Now}
		f.Keep = func(response, output []byte) bool {
			if err := json.Unmarshal(NewStored(response, []byte(`["before"]`), output), &stored); err != nil {
				t.Error(err)
			}
			return true
		}
		told, err := f.Response([]byte(engine))
		if err != nil || string(stored.Response) != string(told) || string(encode(stored.Items)) != want {
			t.Errorf("%s: %s %v", engine, encode(stored.Items), err)
		}
	}
}
