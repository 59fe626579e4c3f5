package wire

import (
	"regexp"
	"strings"
	"testing"
)

func TestRequestID(t *testing.T) {
	fill := func(b []byte) {
		for i := range b {
			b[i] = byte(i * 37)
		}
	}
	own := regexp.MustCompile(`^req_[a-z2-7]{24}$`)
	for _, id := range []string{"a", "A.z_9:-", strings.Repeat("x", 128)} {
		if got := RequestID(id, fill); got != id {
			t.Errorf("%q was replaced by %q", id, got)
		}
	}
	for _, id := range []string{"", " ", "a b", "a\r\nb", "é", "a/b", strings.Repeat("x", 129)} {
		if got := RequestID(id, fill); !own.MatchString(got) {
			t.Errorf("%q became %q", id, got)
		}
	}
}

func headerMap(hs []Header) map[string]string {
	m := make(map[string]string)
	for _, h := range hs {
		m[h.Name] = h.Value
	}
	return m
}

func TestCORS(t *testing.T) {
	listed := []string{"https://chat.example.org"}
	tests := []struct {
		name           string
		allowed        []string
		origin, asked  string
		refused        bool
		value, headers string
		vary           bool
	}{
		{name: "any", allowed: []string{"*"}, origin: "https://x.example", asked: "x-stainless-os, authorization", value: "*", headers: "x-stainless-os, authorization"},
		{name: "any without origin", allowed: []string{"*"}, value: "*"},
		{name: "listed", allowed: listed, origin: "https://CHAT.example.org", asked: "authorization", value: "https://CHAT.example.org", headers: "authorization", vary: true},
		{name: "not listed", allowed: listed, origin: "https://evil.example", refused: true},
		{name: "prefix of a listed one", allowed: listed, origin: "https://chat.example.org.evil.example", refused: true},
		{name: "null", allowed: listed, origin: "null", refused: true},
		{name: "no page", allowed: listed, vary: true},
		{name: "none allowed", origin: "https://x.example", refused: true},
		{name: "asked is no list", allowed: []string{"*"}, origin: "https://x.example", asked: "a\r\nSet-Cookie: x", value: "*"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := NewCORS(tt.allowed)
			answer, e := c.Answer(tt.origin)
			preflight, e2 := c.Preflight(tt.origin, tt.asked)
			if (e != nil) != tt.refused || (e2 != nil) != tt.refused {
				t.Fatalf("refusals %v and %v, want %v", e, e2, tt.refused)
			}
			if tt.refused {
				if e.Kind != OriginNotAllowed {
					t.Fatalf("refused with %v", e)
				}
				return
			}
			a, p := headerMap(answer), headerMap(preflight)
			if a["Access-Control-Allow-Origin"] != tt.value || p["Access-Control-Allow-Origin"] != tt.value {
				t.Errorf("origin %q and %q, want %q", a["Access-Control-Allow-Origin"], p["Access-Control-Allow-Origin"], tt.value)
			}
			if (a["Vary"] != "") != tt.vary {
				t.Errorf("Vary %q", a["Vary"])
			}
			if got := p["Access-Control-Allow-Headers"]; tt.headers != "" && got != tt.headers || got == "" || strings.ContainsAny(got, "\r\n") {
				t.Errorf("headers %q, want %q", got, tt.headers)
			}
			if !strings.Contains(p["Access-Control-Allow-Methods"], "DELETE") || p["Access-Control-Max-Age"] == "" {
				t.Errorf("preflight %v", p)
			}
		})
	}
}

func TestExposedHeadersAreOurs(t *testing.T) {
	for _, name := range []string{"x-request-id", "request-id", "retry-after-ms", "x-should-retry", "x-model", "x-model-state", "x-cold-start", "x-queue-ms", "x-load-ms", "x-queue-length", "x-evicted", "x-runner", "x-media-cache"} {
		if !strings.Contains(", "+exposed+", ", ", "+name+", ") {
			t.Errorf("%s is not exposed", name)
		}
	}
}
