// Package local is the power driver for hosts whose runner is in this process: a wake starts the runner, a sleep stops
// it. `gateway run` uses it (infra/adr/0006-gateway-run.md).
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

var _ power.Driver = (*Driver)(nil)

// Config of a Driver. Run is required.
type Config struct {
	// Run runs a host until ctx ends, and returns when all of it has stopped.
	Run func(ctx context.Context, host catalog.Host) error
	// Grace is how long Close waits for hosts to stop; default 45 s, more than a runner's drain timeout. A goroutine
	// cannot be killed: the processes of a host that hangs end with this process.
	Grace time.Duration
	// MinLife is how long a host must run for Wake to succeed, so that one that cannot start is an error; default 300
	// ms.
	MinLife time.Duration
	// OnExit is called in a goroutine of the driver when a host exits on its own; nil ignores that. err is not nil. The
	// host is off by then, so OnExit may wake it again.
	OnExit func(host string, err error)
	Log    *slog.Logger // default: discard
}

// Driver runs hosts. The caller must close it.
type Driver struct {
	cfg Config

	mu     sync.Mutex
	hosts  map[string]*running // by name, until they have ended
	closed bool

	work sync.WaitGroup // one per host, until its end was reported
}

// running is one host.
type running struct {
	stop     context.CancelFunc
	gone     chan struct{} // closed once it has ended and was removed from Driver.hosts
	err      error         // what Run returned, or errEnded; read after gone
	stopping bool          // guarded by Driver.mu: it was asked to end
}

// New creates a driver that runs nothing.
func New(cfg Config) *Driver {
	cfg.Grace = cmp.Or(max(cfg.Grace, 0), 45*time.Second)
	cfg.MinLife = cmp.Or(max(cfg.MinLife, 0), 300*time.Millisecond)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Driver{cfg: cfg, hosts: map[string]*running{}}
}

// Wake starts the host unless it runs. If it is stopping, Wake waits for its end first. power.ErrFailed: the host
// exited immediately, with the error.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	for {
		r, on, err := d.start(host)
		if err != nil {
			return err
		}
		if on {
			return d.awaitMinLife(ctx, host.Name, r)
		}
		select {
		case <-r.gone: // it was stopping; now it may start again
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", power.ErrStopping, context.Cause(ctx))
		}
	}
}

// start returns the host, started if it did not run; on is false if it is stopping.
func (d *Driver) start(host catalog.Host) (r *running, on bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, power.ErrClosed
	}
	if r := d.hosts[host.Name]; r != nil {
		return r, !r.stopping, nil
	}
	ctx, stop := context.WithCancel(context.Background())
	r = &running{stop: stop, gone: make(chan struct{})}
	d.hosts[host.Name] = r
	d.cfg.Log.Info("host starts", "host", host.Name)
	d.work.Go(func() { d.run(ctx, host, r) })
	return r, true, nil
}

var errEnded = errors.New("the runner returned")

// run runs a host to its end and removes it.
func (d *Driver) run(ctx context.Context, host catalog.Host, r *running) {
	err := cmp.Or(d.cfg.Run(ctx, host), errEnded)
	r.stop()
	d.mu.Lock()
	r.err = err
	wasAsked := r.stopping
	delete(d.hosts, host.Name)
	close(r.gone)
	d.mu.Unlock()
	if wasAsked {
		d.cfg.Log.Info("host stopped", "host", host.Name)
		return
	}
	d.cfg.Log.Warn("host exited on its own", "host", host.Name, "error", err)
	if d.cfg.OnExit != nil {
		d.cfg.OnExit(host.Name, err)
	}
}

// awaitMinLife waits for Config.MinLife, and returns an error if the host exits meanwhile.
func (d *Driver) awaitMinLife(ctx context.Context, name string, r *running) error {
	select {
	case <-time.After(d.cfg.MinLife):
		return nil
	case <-ctx.Done():
		return nil // started anyway
	case <-r.gone:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.stopping {
		return fmt.Errorf("%w: host %s was put to sleep meanwhile", power.ErrStopping, name)
	}
	return fmt.Errorf("%w: host %s exited immediately: %w", power.ErrFailed, name, r.err)
}

// Sleep ends the host and returns once it is gone. If ctx ends first, the host still ends.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	d.mu.Lock()
	r := d.hosts[host.Name]
	if r != nil {
		r.stopping = true
		r.stop()
	}
	d.mu.Unlock()
	if r == nil {
		return nil
	}
	select {
	case <-r.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", power.ErrStopping, context.Cause(ctx))
	}
}

// State returns On for a host that runs, Stopping for one that was asked to end, Off for others.
func (d *Driver) State(_ context.Context, host catalog.Host) (power.Power, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r := d.hosts[host.Name]; {
	case r == nil:
		return power.Off, nil
	case r.stopping:
		return power.Stopping, nil
	}
	return power.On, nil
}

// Close ends all hosts and returns once they are gone, after Config.Grace at the latest. The driver starts nothing
// afterwards. Another call waits as well.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	for _, r := range d.hosts {
		r.stopping = true
		r.stop()
	}
	d.mu.Unlock()
	gone := make(chan struct{})
	go func() { d.work.Wait(); close(gone) }()
	select {
	case <-gone:
	case <-time.After(d.cfg.Grace):
		d.cfg.Log.Error("hosts do not stop", "waited", d.cfg.Grace)
	}
	return nil
}
