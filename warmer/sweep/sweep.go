// Package sweep unloads idle models, loads scheduled ones and puts idle hosts to sleep. One call of [Run] is one pass
// over the pool.
//
// A sweep, in order,
//  1. repairs the state that dead processes left behind: silent hosts, abandoned wakes, tickets without waiters,
//     unfinished sleeps, machines without a runner;
//  2. queues unloads of models that have been idle for too long; their runners check again and carry them out;
//  3. queues loads that the catalog's warm list wants now, waking hosts for them;
//  4. puts hosts without work to sleep (see package state for the steps), and has their drivers turn them off once
//     their runners have confirmed.
//
// policy.Idle decides what is idle, and policy.Place where a load goes. Each decision is committed by a script that
// refuses it if the pool has changed since. Sweeps may therefore run concurrently and be killed at any point: the next
// sweep finds a consistent pool and continues from there.
package sweep

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
)

// Store is the part of the pool's state that a sweep uses; *state.Store implements it, with timeouts.
type Store interface {
	Snapshot(ctx context.Context) (*state.Snapshot, error)
	Catalog(ctx context.Context) (version string, catalog []byte, err error)
	All(ctx context.Context, table state.Setting) (map[string]string, error)
	Set(ctx context.Context, table state.Setting, name, value string) error
	Acquire(ctx context.Context, w state.Want) (state.Acquired, error)
	DropUnwaited(ctx context.Context, who, ticket string) error
	ClaimWake(ctx context.Context, gateway, host string) (token string, err error)
	RenewWake(ctx context.Context, host, token string) error
	FailWake(ctx context.Context, host, token, code, message string) error
	EndOverdueWake(ctx context.Context, host, token, code, message string) error
	CommitSleep(ctx context.Context, host, sweep string, revision uint64, activeMS string) (token string, err error)
	BeginStop(ctx context.Context, host, sweep, token string) error
	power.SleepStore
	power.StopStore
	MarkLost(ctx context.Context, host string) error
	EndStranded(ctx context.Context, host string, limit time.Duration) error
	EndUnseen(ctx context.Context, host string, limit time.Duration) error
	EndOrphan(ctx context.Context, host string, up, limit time.Duration) error
	Forget(ctx context.Context, host string, limit time.Duration) error
	CountHours(ctx context.Context, max time.Duration, on []state.HostOn) error
	Day(ctx context.Context, t time.Time) (state.Day, error)
}

// Power turns hosts on and off; *power.Set implements it.
type Power interface {
	Can(host string) bool // whether it can turn this host on and off
	Wake(ctx context.Context, host string) error
	Sleep(ctx context.Context, host string) error // nil: off; power.ErrStopping: shutting down when ctx ended
}

// Deps are a sweep's dependencies. Store and Power are required.
type Deps struct {
	Store Store
	Power func(*catalog.Catalog) Power // hosts of a catalog with their drivers
	Log   *slog.Logger                 // default: discard
	// Machines lists the pool's machines that their cloud bills as running; nil if no cloud can list them.
	Machines func(context.Context) ([]power.Machine, error)
	// Observe gets the report as soon as it has the hosts and the number of machines, before anything that takes long;
	// nil: nobody does.
	Observe func(Report)
}

// Settings of a sweep. A zero value means the default, except in SweepSettings.
type Settings struct {
	policy.SweepSettings
	Pool        string         // named in the report
	DryRun      bool           // decide and report, change nothing
	Confirm     time.Duration  // timeout for a runner's confirmation of its drain; default 10 s, at most 12 s
	PowerCall   time.Duration  // timeout of a driver for one host; default 60 s
	WakeLimit   time.Duration  // a host that has not registered this long after its wake started has failed, one that has been lost this long is turned off; default 10 min
	OrphanAfter time.Duration  // a machine that has run that long without its runner is noted, and turned off that long after; default 10 min
	ForgetAfter time.Duration  // a host outside the catalog that has been asleep or lost this long is forgotten; default 24 h
	Location    *time.Location // of the schedules; default local time
	ID          string         // of this sweep, unique in the pool; default random
}

func (s Settings) withDefaults() Settings {
	set := func(d *time.Duration, def, limit time.Duration) {
		*d = min(cmp.Or(max(*d, 0), def), limit)
	}
	set(&s.Confirm, 10*time.Second, 12*time.Second) // within the lease taken by the commit
	set(&s.PowerCall, time.Minute, 10*time.Minute)
	set(&s.WakeLimit, 10*time.Minute, 24*time.Hour)
	set(&s.OrphanAfter, 10*time.Minute, 24*time.Hour)
	set(&s.ForgetAfter, 24*time.Hour, 10*365*24*time.Hour)
	s.Location = cmp.Or(s.Location, time.Local)
	s.ID = cmp.Or(s.ID, "sweep-"+rand.Text())
	return s
}

// staleTries limits how often a decision is repeated because the pool has changed, before it is left to the next sweep.
const staleTries = 5

// run is one sweep. It belongs to one goroutine; each step waits for the goroutines that it starts, except for the
// driver's calls.
type run struct {
	Settings
	observe   func(Report)
	store     Store
	power     Power
	machines  func(context.Context) ([]power.Machine, error)
	log       *slog.Logger
	catalog   *catalog.Catalog
	idleTimes map[string]time.Duration  // idle times set at run time, by model
	closed    map[string]catalog.Closed // hosts that are not to be woken
	report    *Report
	begun     *state.Snapshot // the pool when the sweep began

	driverCalls sync.WaitGroup // in the background: a driver can take minutes, and other hosts must not wait for it
	mu          sync.Mutex
	switched    []Action // by driver calls, in the order of their beginning; zero: nothing to report
	storeErrs   []error  // of the same
}

// Run makes one sweep. The report lists what was done (with DryRun, what would be done) and why. The report is also
// valid together with an error. The error is why the sweep is incomplete: the state store is unavailable, or ctx ended.
// Refusals by single hosts or models are only in the report.
//
// Hosts are put to sleep before planned ones are woken, because a machine that runs costs money; the driver's calls of
// both then run side by side. What they have not finished when ctx ends is left to the next sweep.
func Run(ctx context.Context, d Deps, s Settings) (Report, error) {
	s = s.withDefaults()
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	r := &run{Settings: s, store: d.Store, machines: d.Machines, log: d.Log, observe: d.Observe, report: &Report{Pool: s.Pool, DryRun: s.DryRun}}
	err := r.prepare(ctx, d)
	for _, step := range []func(context.Context) error{r.repair, r.stopOrphans, r.reportFirst, r.unload, r.sleep, r.warm} {
		if err == nil {
			err = step(ctx)
		}
	}
	r.driverCalls.Wait()
	for _, a := range r.switched {
		if a.Kind != "" {
			r.addAction(a)
		}
	}
	if err = errors.Join(append(r.storeErrs, err)...); err == nil {
		err = r.reportHosts(ctx)
	}
	return *r.report, err
}

// switchLater calls a driver in the background. The action is reported at the end of the sweep, unless it is zero. The
// error is the store's.
func (r *run) switchLater(call func() (Action, error)) {
	r.mu.Lock()
	i := len(r.switched)
	r.switched = append(r.switched, Action{})
	r.mu.Unlock()
	r.driverCalls.Go(func() {
		a, err := call()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.switched[i] = a
		if err != nil {
			r.storeErrs = append(r.storeErrs, err)
		}
	})
}

// prepare reads the settings of a sweep, and publishes the default idle time for the gateways' listings.
func (r *run) prepare(ctx context.Context, d Deps) error {
	_, raw, err := r.store.Catalog(ctx)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	r.catalog = &catalog.Catalog{}
	if len(raw) > 0 {
		if r.catalog, err = catalog.Unmarshal(raw); err != nil {
			return err
		}
	}
	r.power = d.Power(r.catalog)
	ttl, err := r.store.All(ctx, state.IdleTTL)
	if err != nil {
		return fmt.Errorf("read idle times: %w", err)
	}
	r.idleTimes = idleTimes(ttl)
	defaultIdle := strconv.FormatInt(max(r.Idle, -time.Millisecond).Milliseconds(), 10)
	if r.DryRun || ttl[""] == defaultIdle {
		return nil
	}
	if err := r.store.Set(ctx, state.IdleTTL, "", defaultIdle); err != nil {
		return fmt.Errorf("publish the default idle time: %w", err)
	}
	return nil
}

// decide makes decisions and commits them. next decides on a snapshot, commits what the snapshot still shows correctly,
// and reports whether more is left to do. After state.ErrStale it is called again.
func (r *run) decide(ctx context.Context, next func(*state.Snapshot) (more bool, err error)) error {
	for stale := 0; ; {
		s, err := r.store.Snapshot(ctx)
		if err != nil {
			return err
		}
		more, err := next(s)
		switch {
		case errors.Is(err, state.ErrStale):
			if stale++; stale == staleTries {
				r.log.Info("the pool changes too often, leaving the rest to the next sweep")
				return nil
			}
		case err != nil:
			return err
		case !more:
			return nil
		default:
			stale = 0
		}
	}
}

// now returns the store's clock at the snapshot, in the time zone of the schedules.
func (r *run) now(s *state.Snapshot) time.Time { return time.UnixMilli(s.NowMS).In(r.Location) }

// addAction adds an action to the report and the log.
func (r *run) addAction(a Action) {
	if r.DryRun {
		a.Result = Planned
	}
	r.report.Actions = append(r.report.Actions, a)
	if !r.DryRun {
		r.log.Info("sweep", "action", a.Kind, "host", a.Host, "model", a.Model, "result", a.Result, "reason", a.Reason, "error", a.Error)
	}
}
