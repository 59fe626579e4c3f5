package jsonscan

import "testing"

func TestSet(t *testing.T) {
	tests := []struct{ body, want string }{
		{`{"model":"a","x":1}`, `{"model":"new","x":1}`},
		{` { "x" : 1 , "model" : null } `, ` { "x" : 1 , "model" : "new" } `},
		{`{"mod\u0065l":[1,{"model":2}]}`, `{"mod\u0065l":"new"}`},
		{`{"model":1,"x":{"model":2},"model":3}`, `{"model":"new","x":{"model":2}}`},
		{`{ "x":1 , "model" : 1 , "model":2, "y":2 ,"model":3 }`, `{ "x":1 , "model" : "new" , "y":2  }`},
		{`{}`, `{"model":"new"}`},
		{`{ "x":1}`, `{"model":"new", "x":1}`},
	}
	for _, tt := range tests {
		got, err := SetString([]byte(tt.body), "model", "new")
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.body, got, err, tt.want)
		}
	}
	for _, bad := range []struct{ body, value string }{{`{`, `1`}, {`{}`, ``}, {`{}`, `x`}, {`{}`, `1 2`}, {`[]`, `1`}, {`{"a":1}x`, `1`}} {
		if got, err := Set([]byte(bad.body), "model", []byte(bad.value)); err == nil {
			t.Errorf("Set(%q, %q) = %s", bad.body, bad.value, got)
		}
	}
}

func TestRemove(t *testing.T) {
	tests := []struct{ body, want string }{
		{`{"model":"a","x":1}`, `{"x":1}`},
		{`{"x":1,"model":"a"}`, `{"x":1}`},
		{`{"x":1, "model":"a", "y":2 }`, `{"x":1, "y":2 }`},
		{`{"model":1,"model":2}`, `{}`},
		{`{"model":1,"x":{"model":3},"mod\u0065l":2,"y":4}`, `{"x":{"model":3},"y":4}`},
		{` {"x":1} `, ` {"x":1} `},
		{`{}`, `{}`},
	}
	for _, tt := range tests {
		got, err := Remove([]byte(tt.body), "model")
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.body, got, err, tt.want)
		}
	}
	for _, bad := range []string{``, `[]`, `{"a":1`, `{"model":1}x`} {
		if got, err := Remove([]byte(bad), "model"); err == nil {
			t.Errorf("Remove(%q) = %s", bad, got)
		}
	}
}
