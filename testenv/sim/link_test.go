package sim

import (
	"strings"
	"testing"
)

// TestGarble: while events are garbled one is lost, one comes twice and two change places, however they are cut; replies
// pass, and afterwards events do.
func TestGarble(t *testing.T) {
	event := func(text string) string { return ">3\r\n$7\r\nmessage\r\n$6\r\nevents\r\n$1\r\n" + text + "\r\n" }
	l := newLink(nil, false)
	c := &conn{link: l, listens: true}
	sent, got := "", ""
	hear := func(text string, cut int) {
		sent += text
		for len(text) > 0 {
			n := min(cut, len(text))
			got += string(c.heardLocked([]byte(text[:n])))
			text = text[n:]
		}
	}
	hear(event("a")+"+PONG\r\n", 1000)
	if got != sent {
		t.Fatalf("%q came as %q", sent, got)
	}
	for cut := 1; cut < 40; cut++ {
		l.garble()
		c.events, got = 0, ""
		hear(event("1")+event("2")+"+PONG\r\n"+event("3")+event("4")+event("5")+event("6"), cut)
		if want := event("1") + event("1") + "+PONG\r\n" + event("3") + event("2") + event("5") + event("5"); got != want {
			t.Fatalf("cut into pieces of %d: %q, want %q", cut, got, want)
		}
		l.heal()
		if hear(event("7"), cut); !strings.HasSuffix(got, event("6")+event("7")) {
			t.Fatalf("after it: %q", got)
		}
	}
}
