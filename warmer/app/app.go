// Package app builds a warmer from its settings and runs its sweeps: by a ticker, once, or as an AWS Lambda function.
// The warmer's main and the local warmer of `gateway run` both use it.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"time"

	"reveille/infra/awssecret"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/warmer/sweep"
)

// Settings are a warmer's flags, filled in by config.Parse.
type Settings struct {
	config.RedisFinder
	config.Log
	Sweep
	RunnerSecret string `help:"Secret shared by the pool's gateways and runners, which signs the catalog. Without it models are loaded and unloaded, but hosts are not turned on or off, except EC2 instances and Auto Scaling groups in AWS Lambda."`

	Project string `help:"Tag Project of the pool's EC2 instances. Running instances are counted, and those with a tag Host but without a runner are turned off."`

	Once   bool `help:"Sweep once, print the report and exit."`
	DryRun bool `help:"Decide and report, change nothing."`
	JSON   bool `help:"Print reports as JSON instead of a table."`
}

// Sweep are the flags for idle times. `gateway run` has them as well.
type Sweep struct {
	Idle        time.Duration `help:"Time without traffic after which a model is unloaded, unless the catalog sets it; negative: never." default:"10m"`
	HostIdle    time.Duration `help:"Time without activity after which an empty host is put to sleep; negative: never." default:"15m"`
	HostMinUp   time.Duration `help:"Minimum time that a host stays awake." default:"5m"`
	Every       time.Duration `help:"Time between two sweeps of the local ticker." default:"1m"`
	ForgetAfter time.Duration `help:"Time without a heartbeat after which a host that is asleep or lost and not in the catalog is forgotten." default:"24h"`
}

// Validate checks the settings; config.Parse calls it.
func (s Sweep) Validate() error {
	if s.Every <= 0 {
		return fmt.Errorf("--every %v: want more than 0", s.Every)
	}
	return nil
}

// Deps are a warmer's dependencies.
type Deps struct {
	Drivers map[catalog.Driver]power.Driver // by the name in the catalog's hosts
	// Machines lists a project's machines that their cloud bills as running; required with Settings.Project.
	Machines func(ctx context.Context, project string) ([]power.Machine, error)
	Lambda   bool         // the process is an AWS Lambda function, whose role limits what it can turn on and off
	Out      io.Writer    // receives reports; nil: none are written
	Log      *slog.Logger // required
}

// Warmer sweeps a pool. It is safe for concurrent use.
type Warmer struct {
	settings Settings
	deps     Deps
	store    *state.Store
}

// storeTimeout is the timeout of one call to Redis. It is longer than a request's, because no client waits for a sweep.
const storeTimeout = 2 * time.Second

// New returns a warmer, which the caller must close. It does not wait for Redis.
func New(s Settings, d Deps) (*Warmer, error) {
	redis, err := s.Find()
	if err != nil {
		return nil, err
	}
	s.Pool = redis.Pool
	o := state.Options{URL: redis.RedisURL, Pool: redis.Pool, Timeout: storeTimeout, Log: d.Log}
	if s.RunnerSecret == "" {
		// The catalog is then unverified, so none of its commands and addresses is used.
		o.Unverified, d.Drivers = true, maps.Clone(d.Drivers)
		maps.DeleteFunc(d.Drivers, func(name catalog.Driver, _ power.Driver) bool {
			return !d.Lambda || name != catalog.DriverEC2 && name != catalog.DriverASG
		})
		if !d.Lambda {
			d.Log.Warn("hosts are not turned on or off: the catalog cannot be verified without --runner-secret")
		}
	} else {
		if o.Secret, err = config.Secret(s.RunnerSecret); err != nil {
			return nil, err
		}
	}
	o.Credentials = awssecret.FollowRedis(redis.RedisSecret, d.Log)
	store, err := state.Open(o)
	if err != nil {
		return nil, err
	}
	return &Warmer{s, d, store}, nil
}

// Close ends the warmer's connections.
func (w *Warmer) Close() error { return w.store.Close() }

// Sweep sweeps once. observe gets the report as soon as it has the hosts; nil: nobody does.
func (w *Warmer) Sweep(ctx context.Context, observe func(sweep.Report)) (sweep.Report, error) {
	if err := w.store.CheckFormat(ctx); err != nil {
		return sweep.Report{}, err
	}
	var machines func(context.Context) ([]power.Machine, error)
	if w.settings.Project != "" {
		machines = func(ctx context.Context) ([]power.Machine, error) { return w.deps.Machines(ctx, w.settings.Project) }
	}
	return sweep.Run(ctx, sweep.Deps{
		Store: w.store, Log: w.deps.Log, Machines: machines, Observe: observe,
		Power: func(c *catalog.Catalog) sweep.Power {
			return power.NewSet(power.SetConfig{Catalog: func() *catalog.Catalog { return c }, Drivers: w.deps.Drivers, Address: w.store.HostAddress, Pool: w.store, Log: w.deps.Log})
		},
	}, sweep.Settings{
		SweepSettings: policy.SweepSettings{Idle: w.settings.Idle, HostIdle: w.settings.HostIdle, HostMinUp: w.settings.HostMinUp},
		ForgetAfter:   w.settings.ForgetAfter,
		Pool:          w.settings.Pool, DryRun: w.settings.DryRun,
	})
}

// Run sweeps every Settings.Every until ctx ends, or once with Settings.Once. A failed sweep is logged and repeated at
// the next interval; with Once its error is returned. It returns nil when ctx ends.
func (w *Warmer) Run(ctx context.Context) error {
	if w.settings.Once {
		return w.sweepOnce(ctx)
	}
	if err := w.store.CheckFormat(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(w.settings.Every)
	defer tick.Stop()
	for {
		r, err := w.Sweep(ctx, nil)
		switch {
		case err == nil && len(r.Actions) > 0:
			err = w.print(r)
		case errors.Is(err, state.ErrUnavailable):
			w.deps.Log.Debug("sweep", "error", err) // the store's breaker logs it
			err = nil
		}
		if err != nil && ctx.Err() == nil {
			w.deps.Log.Warn("sweep incomplete", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *Warmer) sweepOnce(ctx context.Context) error {
	r, err := w.Sweep(ctx, nil)
	if err != nil && len(r.Actions) == 0 {
		return err // the report would say that there is nothing to do
	}
	return errors.Join(err, w.print(r))
}
