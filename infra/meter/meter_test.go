package meter

import (
	"strings"
	"testing"
)

func TestSum(t *testing.T) {
	var s Sum
	s.Add([]byte("# TYPE r_a counter\nr_a 1\nr_b{x=\"a b} c\",le=\"+Inf\"} 2.5\nother 7\nr_broken\nr_nan NaN\nr_word x\nr_{\n"), "r_")
	s.Add([]byte("r_a 2 1700000000\r\nr_b{x=\"a b} c\",le=\"+Inf\"} 1\nr_c 1e3"), "r_")
	var b strings.Builder
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if want := "# TYPE r_a counter\nr_a 3\nr_b{x=\"a b} c\",le=\"+Inf\"} 3.5\nr_c 1000\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
