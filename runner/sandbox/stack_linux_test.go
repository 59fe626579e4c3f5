package sandbox

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestThreadsHaveLargeStacks checks that engines start with large stacks in every mode, and that an owner's larger
// limit is kept.
func TestThreadsHaveLargeStacks(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_STACK, &before) })
	for _, tt := range []struct{ soft, want uint64 }{
		{8 << 20, stackLimit}, {2 * stackLimit, 2 * stackLimit}, {unix.RLIM_INFINITY, stackLimit},
	} {
		if tt.soft > before.Max {
			continue
		}
		for _, mode := range []string{Auto, Off} {
			if err := unix.Setrlimit(unix.RLIMIT_STACK, &unix.Rlimit{Cur: tt.soft, Max: before.Max}); err != nil {
				t.Fatal(err)
			}
			s := newBox(t, Config{Mode: mode})
			var out strings.Builder
			cmd := exec.Command("/bin/sh", "-c", "ulimit -s")
			cmd.Stdout = &out
			release, err := s.Start(cmd, Permissions{Program: "/bin/sh", OpenFiles: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			release()
			want := min(tt.want, before.Max) >> 10
			if got := strings.TrimSpace(out.String()); err != nil || got != strconv.FormatUint(want, 10) {
				t.Errorf("soft limit %d, mode %s: an engine's stack has %q KiB, want %d: %v", tt.soft, mode, got, want, err)
			}
		}
	}
}
