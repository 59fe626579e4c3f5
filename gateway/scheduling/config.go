package scheduling

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
)

// Store is the part of the pool's state that the gate uses; [*state.Store] implements it and bounds its own calls.
type Store interface {
	Acquire(ctx context.Context, w state.Want) (state.Acquired, error)
	Renew(ctx context.Context, gateway string, renewals ...state.Renewal) ([]state.TicketStatus, error)
	ReleaseTicket(ctx context.Context, gateway, ticket string, keep bool) error
	RenewWake(ctx context.Context, host, token string) error
	ReleaseWake(ctx context.Context, host, token string) error
	FailWake(ctx context.Context, host, token, code, message string) error
	EndOverdueWake(ctx context.Context, host, token, code, message string) error
	ClaimWake(ctx context.Context, gateway, host string) (token string, err error)
	ForceWake(ctx context.Context, gateway, host string) (token string, err error)
	CommitSleep(ctx context.Context, host, owner string, revision uint64, activeMS string) (token string, err error)
	BeginStop(ctx context.Context, host, owner, token string) error
	power.SleepStore
	power.StopStore
	Forget(ctx context.Context, host string, limit time.Duration) error
	Conversations(ctx context.Context, model string) (map[string]state.Conversations, error)
}

// Mirror is the gate's view of the pool; [*state.Mirror] implements it.
type Mirror interface {
	// Snapshot returns the newest copy, never nil. Its Taken is zero before the first one.
	Snapshot() *state.Snapshot
	// Refresh reads a new snapshot.
	Refresh(ctx context.Context) (*state.Snapshot, error)
	// RefreshHosts re-reads the named hosts, and all hosts with copies or loads of the named models.
	RefreshHosts(ctx context.Context, hosts []string, models ...string) (*state.Snapshot, error)
}

// Waker starts hosts.
type Waker interface {
	// Wake asks the host's driver to start it and returns when the driver accepted or refused. It may try several
	// times. It must return when ctx ends. After an error, waiters get another host, or no_capacity.
	Wake(ctx context.Context, host string) error
}

// Stopper turns hosts off.
type Stopper interface {
	// Sleep asks the host's driver to turn it off and returns when the host is off, as far as the driver knows, or the
	// driver refused. It must return when ctx ends.
	Sleep(ctx context.Context, host string) error
}

// Config configures a Gate. Store, Mirror, Catalog and Waker are required; a zero value elsewhere means the default.
type Config struct {
	Store   Store
	Mirror  Mirror
	Waker   Waker
	Stopper Stopper // for SleepHost; nil: this gateway turns no host off
	// SendBack asks a host's runner to refuse up to n of the requests that wait for their turn at a model's engine, so
	// that their gateways send them to other copies; nil: requests stay with the copy that they were sent to.
	SendBack func(ctx context.Context, host *state.HostRecord, model string, n int) error
	Catalog  func() *catalog.Catalog // the catalog in force; called often, so it must be cheap; never nil

	// AwakeToday returns how long each host has been awake on this day of UTC, for daily_host_hours; it must be cheap.
	// Default: nothing is known, and no host is refused for it.
	AwakeToday func() map[string]time.Duration

	Gateway string // unique id of this process in the pool; default: random

	Hold      time.Duration // maximum time that a request waits for a cold model; default 300 s
	FairAfter time.Duration // --fair-after: a model gets further copies if all its copies need longer than this for their queues; default 2 s
	WakeLimit time.Duration // maximum time from the start of a host's wake to its registration; default 10 min

	Evict policy.EvictionPolicy // how idle models are compared when one must be evicted; default LRU

	MaxPerModel int // maximum number of waiters of one model; beyond it requests get queue_full; default 10,000
	MaxTotal    int // maximum number of waiters; beyond it requests get overloaded; default 20,000

	Log *slog.Logger // default: discard
}

func (c Config) withDefaults() Config {
	c.Hold = cmp.Or(max(c.Hold, 0), 300*time.Second)
	c.WakeLimit = cmp.Or(max(c.WakeLimit, 0), 10*time.Minute)
	c.FairAfter = cmp.Or(max(c.FairAfter, 0), 2*time.Second)
	c.Gateway = cmp.Or(c.Gateway, "gw-"+rand.Text())
	if c.AwakeToday == nil {
		c.AwakeToday = func() map[string]time.Duration { return nil }
	}
	c.MaxPerModel = cmp.Or(max(c.MaxPerModel, 0), 10_000)
	c.MaxTotal = cmp.Or(max(c.MaxTotal, 0), 20_000)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}
