package attack

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestOutOfDescriptors: connections that take the last file descriptors of a gateway with a runner do not end it.
func TestOutOfDescriptors(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	chat := func() {
		t.Helper()
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false), bearer(inferKey)); !a.OK() {
			t.Fatal(a)
		}
	}
	chat()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	few := unix.Rlimit{Cur: uint64(len(open)) + 10}
	if err := unix.Prlimit(s.PID(), unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	few.Max = before.Max
	if err := unix.Prlimit(s.PID(), unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	served := 0
	var flood []peer
	for range 30 {
		flood = append(flood, dialFrom(t, "127.0.0.2", s.URL))
	}
	for _, p := range flood {
		_, _ = io.WriteString(p, "GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		_ = p.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if p.hear() == 200 {
			served++
		}
	}
	if served == 0 || served == len(flood) {
		t.Errorf("%d of %d connections were served, want some", served, len(flood))
	}
	for _, p := range flood {
		_ = p.Close()
	}
	chat()
}
