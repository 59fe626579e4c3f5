package api

import (
	"regexp"
	"strings"
	"testing"
)

func TestRequestID(t *testing.T) {
	own := regexp.MustCompile(`^req_[a-z2-7]{26}$`)
	for _, id := range []string{"a", "A.z_9:-", strings.Repeat("x", 128)} {
		if got := RequestID([]byte(id)); got != id {
			t.Errorf("%q was replaced by %q", id, got)
		}
	}
	for _, id := range []string{"", " ", "a b", "a\r\nb", "é", "a/b", strings.Repeat("x", 129)} {
		if got := RequestID([]byte(id)); !own.MatchString(got) {
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

func TestExposedHeadersAreListed(t *testing.T) {
	for _, name := range []string{"x-request-id", "request-id", "retry-after-ms", "x-should-retry", "x-model", "x-model-state", "x-cold-start", "x-queue-ms", "x-load-ms", "x-queue-length", "x-evicted", "x-runner", "x-media-cache", "x-cache-tokens"} {
		if !strings.Contains(", "+exposed+", ", ", "+name+", ") {
			t.Errorf("%s is not exposed", name)
		}
	}
}
