package exec_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/exec"
	"reveille/testenv/waketest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine returns a host that is on while a file exists; each wake adds a line to the file starts.
func machine(t *testing.T) (host catalog.Host, starts string) {
	dir := t.TempDir()
	on, starts := filepath.Join(dir, "on"), filepath.Join(dir, "starts")
	return catalog.Host{Name: "box", Driver: catalog.DriverExec, Commands: &catalog.Commands{
		Wake:  []string{"sh", "-c", `echo "$REVEILLE_HOST" >> "$1"; touch "$0"`, on, starts},
		Sleep: []string{"rm", "-f", on},
		State: []string{"test", "-e", on},
	}}, starts
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		host, starts := machine(t)
		return waketest.Fixture{
			Driver: exec.New(0), Host: host, Strange: &catalog.Host{Name: "x"},
			Starts: func() int {
				b, _ := os.ReadFile(starts)
				return strings.Count(string(b), "box\n")
			},
		}
	})
}

func TestStatuses(t *testing.T) {
	for name, tc := range map[string]struct {
		argv []string
		want error
		says string
	}{
		"success":            {[]string{"true"}, nil, ""},
		"no capacity":        {[]string{"sh", "-c", "echo full >&2; exit 69"}, power.ErrNoCapacity, "full"},
		"try again":          {[]string{"sh", "-c", "exit 75"}, power.ErrThrottled, "(no output)"},
		"failure":            {[]string{"sh", "-c", "echo a; echo last words; exit 3"}, power.ErrFailed, "exit status 3: last words"},
		"no such program":    {[]string{"/nonexistent/x"}, power.ErrFailed, "/nonexistent/x"},
		"killed":             {[]string{"sh", "-c", "kill -9 $$"}, power.ErrFailed, "killed"},
		"much output":        {[]string{"sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo; echo end; exit 1"}, power.ErrFailed, "end"},
		"arguments as given": {[]string{"test", "a b; c", "=", "a b; c"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := catalog.Host{Name: "box", Commands: &catalog.Commands{Wake: tc.argv, Sleep: tc.argv}}
			asleep := tc.want
			if asleep == power.ErrThrottled {
				asleep = power.ErrInUse
			}
			for i, call := range []func(context.Context, catalog.Host) error{exec.New(0).Wake, exec.New(0).Sleep} {
				err, want := call(t.Context(), h), []error{tc.want, asleep}[i]
				if !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Fatalf("%v, want %v", err, want)
				}
				if err != nil && !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%q does not say %q", err, tc.says)
				}
			}
		})
	}
}

func TestACommandThatHangsIsKilledWithItsChildren(t *testing.T) {
	h := catalog.Host{Name: "box", Commands: &catalog.Commands{Wake: []string{"sh", "-c", "sleep 600 & sleep 600"}, Sleep: []string{"true"}}}
	began := time.Now()
	err := exec.New(100*time.Millisecond).Wake(t.Context(), h)
	if !errors.Is(err, power.ErrFailed) || !strings.Contains(err.Error(), "not done within 100ms") {
		t.Error("wake:", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Error("took", took)
	}
}

func TestStateWithoutACommand(t *testing.T) {
	h := catalog.Host{Name: "box", Commands: &catalog.Commands{Wake: []string{"true"}, Sleep: []string{"true"}}}
	if p, err := exec.New(0).State(t.Context(), h); p != power.Unknown || err != nil {
		t.Error(p, err)
	}
	h.Commands.State = []string{"/nonexistent/x"}
	if p, err := exec.New(0).State(t.Context(), h); p != power.Unknown || !errors.Is(err, power.ErrFailed) {
		t.Error(p, err)
	}
}
