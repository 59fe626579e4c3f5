package term

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
)

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := tabwriter.NewWriter(Writer(&out), 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "HOST\tSTATE\n%s\t%s\n", "évil\u202e", "\x1b]0;PWNED\a\x1b[2J\u009b1m")
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); bytes.ContainsAny(out.Bytes(), "\x1b\a\u202e\u009b") || !strings.HasPrefix(got, "HOST") || !strings.Contains(got, "\névil") || !strings.Contains(got, "]0;PWNED  [2J 1m\n") {
		t.Errorf("%q", got)
	}
}
