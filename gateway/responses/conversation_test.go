package responses

import (
	"encoding/json"
	"testing"
	"time"
)

func TestItems(t *testing.T) {
	const hi = `{"role":"user","content":"hi"}`
	for _, c := range []struct{ input, before, want string }{
		{`"hi"`, ``, `[` + hi + `]`},
		{`"hi"`, `[]`, `[` + hi + `]`},
		{`"hi"`, ` [ 1 ] `, `[ 1 ,` + hi + `]`},
		{` [ ] `, `[1]`, `[1]`},
		{`[2,3]`, `[1]`, `[1,2,3]`},
		{`[2]`, ``, `[2]`},
	} {
		q, err := StoreOf([]byte(`{"input":` + c.input + `,"store":null,"previous_response_id":null}`))
		if err != nil || q.Previous != "" || !q.Wanted {
			t.Fatalf("%+v %v", q, err)
		}
		if got := string(q.Items([]byte(c.before))); got != c.want {
			t.Errorf("%s after %s: %s, want %s", c.input, c.before, got, c.want)
		}
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
		told, err := f.Answer([]byte(engine))
		if err != nil || string(stored.Response) != string(told) || string(stored.Items) != want {
			t.Errorf("%s: %s %v", engine, stored.Items, err)
		}
	}
}
