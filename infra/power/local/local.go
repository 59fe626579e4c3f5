// Package local is the wake driver for hosts that are processes on this machine: a runner is started to wake its host and
// ended to put it to sleep. `gateway run` starts its own binary again with it.
//
// A child lives in a process group of its own and dies with its parent (on Linux, whatever ends the parent). Its end is
// noticed at once, and what is left of its group is ended with it.
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

var _ power.Driver = (*Driver)(nil)

// Command is the command that is started for a host.
type Command struct {
	Argv []string // program and arguments; never a shell's text
	Env  []string // KEY=value, the whole environment; nil inherits this process's
	Dir  string   // working folder, "" this process's
}

// Config of a Driver. Command is needed.
type Config struct {
	// Command says what to start for a host. It is called at each start.
	Command func(catalog.Host) (Command, error)
	// Grace is how long a child may take to end after SIGTERM before its group is killed; default 45 s, more than a
	// runner's own time to drain.
	Grace time.Duration
	// MinLife is how long a new child must live for a wake to count as accepted, so that one that cannot start at all is
	// an error with its last words; default 300 ms.
	MinLife time.Duration
	// Output gets what children write to standard output and error; nil discards it. Writes do not overlap.
	Output io.Writer
	// OnExit hears of a child that ended without being asked to, from a goroutine of the driver; nil ignores it. err is
	// nil for status 0. The driver holds nothing then: OnExit may wake the host again.
	OnExit func(host string, err error)
	Log    *slog.Logger // default: discard
}

// Driver starts and ends child processes. Close it when done.
type Driver struct {
	cfg     Config
	spawner *spawner
	output  *shared

	mu       sync.Mutex
	children map[string]*child // by host, from the start until reaped
	closed   bool

	work sync.WaitGroup // one per child, until its end was told
}

// child is one process.
type child struct {
	host string
	cmd  *exec.Cmd
	tail *power.Tail
	gone chan struct{} // closed when it is reaped and no longer in Driver.children
	err  error         // how it ended; read after gone

	stopping bool        // guarded by Driver.mu: it was told to end
	ended    bool        // guarded by Driver.mu: its process has ended; its number may soon be another's
	kill     *time.Timer // guarded by Driver.mu: the end of its grace
}

// New makes a driver without children.
func New(cfg Config) *Driver {
	cfg.Grace = cmp.Or(max(cfg.Grace, 0), 45*time.Second)
	cfg.MinLife = cmp.Or(max(cfg.MinLife, 0), 300*time.Millisecond)
	cfg.Output = cmp.Or(cfg.Output, io.Discard)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Driver{
		cfg: cfg, spawner: newSpawner(), output: &shared{w: cfg.Output}, children: map[string]*child{},
	}
}

// Wake starts the host's process unless it runs. One that is being ended is waited for first. power.ErrFailed, with its
// last words: it could not be started, or ended at once.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	for {
		c, running, err := d.start(host)
		if err != nil {
			return err
		}
		if running {
			return d.awaitMinLife(ctx, c)
		}
		select {
		case <-c.gone: // it was being ended; now a new one may start
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", power.ErrStopping, context.Cause(ctx))
		}
	}
}

// start returns the host's process, making it if there is none; running is false for one that is being ended.
func (d *Driver) start(host catalog.Host) (c *child, running bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, power.ErrClosed
	}
	if c := d.children[host.Name]; c != nil {
		return c, !c.stopping && !c.ended, nil
	}
	what, err := d.cfg.Command(host)
	if err != nil {
		return nil, false, err
	}
	if len(what.Argv) == 0 {
		return nil, false, fmt.Errorf("%w: no command to start host %s with", power.ErrFailed, host.Name)
	}
	c = &child{host: host.Name, cmd: exec.Command(what.Argv[0], what.Argv[1:]...), tail: &power.Tail{}, gone: make(chan struct{})}
	c.cmd.Env, c.cmd.Dir = what.Env, what.Dir
	out := io.MultiWriter(c.tail, d.output)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.WaitDelay = 2 * time.Second // for processes that inherited the pipe and outlived the group
	if err := d.spawner.start(c.cmd); err != nil {
		return nil, false, fmt.Errorf("%w: start host %s: %w", power.ErrFailed, host.Name, err)
	}
	d.children[host.Name] = c
	d.cfg.Log.Info("host process started", "host", c.host, "pid", c.cmd.Process.Pid)
	d.work.Go(func() { d.mind(c) })
	return c, true, nil
}

// awaitMinLife waits until a process has lived for Config.MinLife.
func (d *Driver) awaitMinLife(ctx context.Context, c *child) error {
	select {
	case <-time.After(d.cfg.MinLife):
		return nil
	case <-ctx.Done():
		return nil // started all the same
	case <-c.gone:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stopping {
		return fmt.Errorf("%w: host %s was put to sleep meanwhile", power.ErrStopping, c.host)
	}
	return fmt.Errorf("%w: the process of host %s ended at once: %s", power.ErrFailed, c.host, c.lastOutput())
}

func (c *child) lastOutput() string {
	how := "status 0"
	if c.err != nil {
		how = c.err.Error()
	}
	if words := c.tail.LastLine(); words != "" {
		how += ": " + words
	}
	return how
}

// mind waits for a process to end, ends what is left of its group and forgets it.
func (d *Driver) mind(c *child) {
	err := reap(c.cmd, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		c.ended = true
	})
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	d.mu.Lock()
	c.err = err
	asked := c.stopping
	if c.kill != nil {
		c.kill.Stop()
	}
	delete(d.children, c.host)
	close(c.gone)
	d.mu.Unlock()
	if asked {
		d.cfg.Log.Info("host process ended", "host", c.host)
		return
	}
	d.cfg.Log.Warn("host process ended by itself", "host", c.host, "how", c.lastOutput())
	if d.cfg.OnExit != nil {
		d.cfg.OnExit(c.host, err)
	}
}

// Sleep ends the host's process and returns when it is gone. When ctx ends first the process is ended all the same,
// within Config.Grace.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	d.mu.Lock()
	c := d.children[host.Name]
	if c != nil {
		d.endLocked(c)
	}
	d.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", power.ErrStopping, context.Cause(ctx))
	}
}

// endLocked asks a process to end, once, and sees to its end after the grace.
func (d *Driver) endLocked(c *child) {
	if c.stopping || c.ended {
		return
	}
	c.stopping = true
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	c.kill = time.AfterFunc(d.cfg.Grace, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !c.ended {
			d.cfg.Log.Warn("host process does not end, killed", "host", c.host)
			_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

// State is On for a running process, Stopping for one that was told to end, Off for none.
func (d *Driver) State(_ context.Context, host catalog.Host) (power.Power, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch c := d.children[host.Name]; {
	case c == nil:
		return power.Off, nil
	case c.stopping, c.ended:
		return power.Stopping, nil
	}
	return power.On, nil
}

// Close ends all processes and returns when they are gone, which takes Config.Grace at most and a little more. The
// driver starts nothing after it. Calling it again waits, too.
func (d *Driver) Close() error {
	d.mu.Lock()
	first := !d.closed
	d.closed = true
	for _, c := range d.children {
		d.endLocked(c)
	}
	d.mu.Unlock()
	d.work.Wait()
	if first {
		d.spawner.close()
	}
	return nil
}
