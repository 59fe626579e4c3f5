// Package exec is the power driver for hosts that the operator's own commands turn on and off. Commands are argument
// vectors, started without a shell, with the host's name and address in REVEILLE_HOST and REVEILLE_ADDRESS.
//
// Status 0 is success. Status 69 (EX_UNAVAILABLE) means no capacity, 75 (EX_TEMPFAIL) means try again soon, or of a
// sleep command that the host stays on for now, and any other is a failure. A state command exits with 0 if the host is
// on and with any other status if it is off. With a state command, the wake command does not run if the host is already
// on, nor the sleep command if it is already off.
package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

var _ power.Driver = (*Driver)(nil)

// Statuses with a special meaning, numbered as in sysexits.h.
const (
	exUnavailable = 69
	exTempFail    = 75
)

// Driver runs commands, one at a time per host.
type Driver struct {
	timeout time.Duration

	mu    sync.Mutex
	locks map[string]chan struct{} // by host, capacity 1: full while a command of the host runs
}

// New creates a driver. It kills commands, with their process group, after timeout (60 s if timeout is not above 0).
func New(timeout time.Duration) *Driver {
	if timeout <= 0 {
		timeout = time.Minute
	}
	return &Driver{timeout: timeout, locks: map[string]chan struct{}{}}
}

// Wake runs the host's wake command, unless its state command reports that it is on.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	return d.change(ctx, host, power.On)
}

// Sleep runs the host's sleep command, unless its state command reports that it is off.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	return d.change(ctx, host, power.Off)
}

func (d *Driver) change(ctx context.Context, host catalog.Host, to power.Power) error {
	if host.Commands == nil {
		return fmt.Errorf("%w: %s has no commands", power.ErrUnknownHost, host.Name)
	}
	unlock, err := d.lock(ctx, host.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if is, err := d.State(ctx, host); err != nil || is == to {
		return err
	}
	argv := host.Commands.Wake
	if to == power.Off {
		argv = host.Commands.Sleep
	}
	out, err := d.run(ctx, host, argv)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("%w: %s: %w", power.ErrFailed, argv[0], err)
	case exit.ExitCode() == exUnavailable:
		return fmt.Errorf("%w: %s", power.ErrNoCapacity, lastLine(out))
	case exit.ExitCode() == exTempFail && to == power.Off:
		return fmt.Errorf("%w: %s", power.ErrInUse, lastLine(out))
	case exit.ExitCode() == exTempFail:
		return fmt.Errorf("%w: %s", power.ErrThrottled, lastLine(out))
	}
	return fmt.Errorf("%w: %s: %w: %s", power.ErrFailed, argv[0], err, lastLine(out))
}

// State runs the host's state command, or returns Unknown for a host without one.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	if host.Commands == nil || len(host.Commands.State) == 0 {
		return power.Unknown, nil
	}
	_, err := d.run(ctx, host, host.Commands.State)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return power.On, nil
	case errors.As(err, &exit) && exit.Exited():
		return power.Off, nil
	}
	return power.Unknown, fmt.Errorf("%w: %s: %w", power.ErrFailed, host.Commands.State[0], err)
}

// run runs one command until it exits and returns the end of its output.
func (d *Driver) run(ctx context.Context, host catalog.Host, argv []string) (*power.Tail, error) {
	if len(argv) == 0 {
		return nil, errors.New("the command is empty")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("not done within %v", d.timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "REVEILLE_HOST="+host.Name, "REVEILLE_ADDRESS="+host.Address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a child left by the command can hold its output open
	out := &power.Tail{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}

// lock waits until no command of a host is running, and prevents others from starting until unlock is called.
func (d *Driver) lock(ctx context.Context, host string) (unlock func(), err error) {
	d.mu.Lock()
	c := d.locks[host]
	if c == nil {
		c = make(chan struct{}, 1)
		d.locks[host] = c
	}
	d.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func lastLine(out *power.Tail) string {
	line := out.LastLine()
	if line == "" {
		return "(no output)"
	}
	return strings.ToValidUTF8(line, "?")
}
