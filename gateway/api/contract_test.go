package api

import "testing"

// A row of the error table is found by its code and status, and says what clients need: a refusal of the request is
// final, except where waiting helps.
func TestErrorTable(t *testing.T) {
	last := 0
	for _, k := range Kinds() {
		e := New(k, "text")
		if found, ok := KindOf(e.Code, e.Status); !ok || found != k {
			t.Errorf("KindOf(%s, %d) = %v, %v", e.Code, e.Status, found, ok)
		}
		if e.Status < last || e.Code == "" || e.Type == "" {
			t.Errorf("%+v", e)
		}
		if last = e.Status; e.NoRetry && e.RetryAfter > 0 || e.Status < 500 && e.Status != 429 && !e.NoRetry || e.Status == 503 && e.RetryAfter == 0 {
			t.Errorf("%s: final %v, again after %v", e.Code, e.NoRetry, e.RetryAfter)
		}
	}
}
