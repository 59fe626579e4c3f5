// Package local is the power driver for hosts that are processes on this machine: it starts a runner to wake its host
// and ends the runner to put the host to sleep. `gateway run` uses it to start its own binary again.
//
// A child has its own process group and dies with its parent (on Linux, however the parent ends). The driver notices
// its end at once, and ends what is left of its group.
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

// Command is the command to start for a host.
type Command struct {
	Argv []string // program and arguments, not text for a shell
	Env  []string // KEY=value, the whole environment; nil inherits this process's
	Dir  string   // working folder, "" means this process's
}

// Config of a Driver. Command is required.
type Config struct {
	// Command returns the command to start for a host. It is called at each start.
	Command func(catalog.Host) (Command, error)
	// Grace is how long a child may take to exit after SIGTERM before its group is killed; default 45 s, more than a
	// runner's own drain time.
	Grace time.Duration
	// MinLife is how long a new child must live for Wake to succeed, so that a child that cannot start is an error with
	// its last output; default 300 ms.
	MinLife time.Duration
	// Output receives what children write to standard output and error; nil discards it. Writes do not overlap.
	Output io.Writer
	// OnExit is called on a goroutine of the driver when a child exits without being asked to; nil ignores that. err is
	// nil for status 0. The driver has already removed the child, so OnExit may wake the host again.
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

	work sync.WaitGroup // one per child, until its exit was reported
}

// child is one process.
type child struct {
	host string
	cmd  *exec.Cmd
	tail *power.Tail
	gone chan struct{} // closed once it is reaped and removed from Driver.children
	err  error         // how it ended; read after gone

	stopping bool        // guarded by Driver.mu: it was asked to exit
	ended    bool        // guarded by Driver.mu: its process has ended, so its PID may soon be reused
	kill     *time.Timer // guarded by Driver.mu: fires when its grace period ends
}

// New creates a driver without children.
func New(cfg Config) *Driver {
	cfg.Grace = cmp.Or(max(cfg.Grace, 0), 45*time.Second)
	cfg.MinLife = cmp.Or(max(cfg.MinLife, 0), 300*time.Millisecond)
	cfg.Output = cmp.Or(cfg.Output, io.Discard)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Driver{
		cfg: cfg, spawner: newSpawner(), output: &shared{w: cfg.Output}, children: map[string]*child{},
	}
}

// Wake starts the host's process unless it is running. If one is stopping, Wake waits for its end first.
// power.ErrFailed, with its last output: the process could not be started or exited at once.
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
		case <-c.gone: // it was stopping; now a new one may start
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", power.ErrStopping, context.Cause(ctx))
		}
	}
}

// start returns the host's process and creates it if there is none; running is false if the process is stopping.
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
		return nil, false, fmt.Errorf("%w: no command to start host %s", power.ErrFailed, host.Name)
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
		return nil // started anyway
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

// mind waits for a process to exit, ends what is left of its group and removes it.
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

// Sleep ends the host's process and returns once it is gone. If ctx ends first, the process still ends, within
// Config.Grace.
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

// endLocked asks a process to exit, once, and kills it after the grace period.
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
			d.cfg.Log.Warn("host process did not exit, killing it", "host", c.host)
			_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

// State returns On for a running process, Stopping for one that was asked to exit, Off for none.
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

// Close ends all processes and returns once they are gone, which takes little more than Config.Grace at most. The
// driver starts nothing afterwards. Another call waits as well.
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
