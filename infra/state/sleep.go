package state

import (
	"context"
	"errors"
	"time"
)

// ErrWanted: work has arrived for the host, so it must not sleep now.
var ErrWanted = errors.New("host is wanted awake")

// A host goes to sleep in steps. Each is refused (ErrGone) once the sleep is over, whoever ended it:
//
//  1. CommitSleep (a sweep): a ready host without models, tickets or leases starts draining under its power lease.
//  2. ConfirmSleep (its runner, which counts the streams itself): it is asleep, or ready again with ErrWanted.
//  3. BeginStop (a sweep) takes the lease again, HoldStop keeps it while the driver turns the machine off, EndStop ends
//     it. A request that arrives meanwhile waits for the lease and then has the host woken.
//
// A runner that could not turn its machine off ends the sleep (FailSleep): the host is ready again.
//
// A process may die after any step: the host's field sleep_token shows the next sweep what is left to do. From
// BeginStop to EndStop the record says so (HostRecord.Stopping), for runners that turn their machine off themselves.

// CommitSleep makes a host drain that had no work in the snapshot of this revision and was last active at activeMS. It
// returns the token of the sleep. ErrStale: the pool has changed since. ErrWanted: there is work.
func (s *Store) CommitSleep(ctx context.Context, host, sweep string, revision uint64, activeMS string) (token string, err error) {
	words, err := s.evalList(ctx, "sleep_commit", host, sweep, WakeLease.Milliseconds(), revision, activeMS)
	if err != nil || len(words) == 0 {
		return "", err
	}
	return words[0], nil
}

// ConfirmSleep reports that nothing is open or held on the caller's host, which is draining for the sleep of this
// token, and whether its machine is in use. If not, the host is asleep from here on. ErrWanted: the machine is in use,
// which counts as activity, or work arrived. The host is ready again.
func (s *Store) ConfirmSleep(ctx context.Context, host string, generation uint64, token string, inUse bool) error {
	return s.evalStatus(ctx, "sleep_confirm", host, generation, token, FormatBool(inUse))
}

// CancelSleep makes a host ready again if its runner has not confirmed the sleep. ErrGone: it has.
func (s *Store) CancelSleep(ctx context.Context, host, sweep, token string) error {
	return s.evalStatus(ctx, "sleep_cancel", host, sweep, token)
}

// BeginStop gives the caller the right to turn off a sleeping host's machine, for WakeLease. ErrWanted: work arrived,
// the host may be woken. ErrNotOwner: another sweep is turning it off.
func (s *Store) BeginStop(ctx context.Context, host, sweep, token string) error {
	return s.evalStatus(ctx, "sleep_stop", host, sweep, token, WakeLease.Milliseconds(), "begin")
}

// HoldStop keeps that right for another WakeLease.
func (s *Store) HoldStop(ctx context.Context, host, sweep, token string) error {
	return s.evalStatus(ctx, "sleep_stop", host, sweep, token, WakeLease.Milliseconds(), "hold")
}

// EndStop gives up that right. The machine is off, or, if failure is set, could not be turned off; a later sweep tries
// again.
func (s *Store) EndStop(ctx context.Context, host, sweep, token, failure string) error {
	outcome := "done"
	if failure != "" {
		outcome = "failed"
	}
	return s.evalStatus(ctx, "sleep_end", host, sweep, token, outcome, failure)
}

// FailSleep reports that the caller could not turn its machine off, so that its host serves again. Whoever holds the
// stop learns by ErrGone. ErrGone here: the sleep of this token is over.
func (s *Store) FailSleep(ctx context.Context, host string, generation uint64, token string) error {
	return s.evalStatus(ctx, "sleep_fail", host, generation, token)
}

// ReportPacket records that a magic packet is sent to a host that is being woken, which proves the host once it
// registers (HostRecord.Proven). ErrGone: it is not being woken, or its machine was not seen off since its runner last
// registered, so that a registration would prove nothing.
func (s *Store) ReportPacket(ctx context.Context, host string) error {
	return s.evalStatus(ctx, "packet", host)
}

// ReleaseStop gives up that right before the machine is known to be off. A later sweep continues.
func (s *Store) ReleaseStop(ctx context.Context, host, sweep, token string) error {
	return s.evalStatus(ctx, "sleep_end", host, sweep, token, "leave", "")
}

// MarkLost marks as lost a host whose runner has been silent for twice LostAfter, the second half since a caller
// noticed. Its records are removed and its started work is queued again. ErrGone: it is alive or asleep, or its silence
// has only just been noticed.
func (s *Store) MarkLost(ctx context.Context, host string) error {
	return s.repair(ctx, host, "lost", 0)
}

// EndStranded marks as asleep a host whose wake started longer than limit ago, that never registered and is no longer
// wanted. ErrGone: the host is not in that state.
func (s *Store) EndStranded(ctx context.Context, host string, limit time.Duration) error {
	return s.repair(ctx, host, "stranded", limit)
}

// EndUnseen marks as asleep a host that is lost, has been silent for longer than limit and has nothing queued. Its
// machine, which may still run, is left for a sweep to turn off. ErrGone: the host is not in that state.
func (s *Store) EndUnseen(ctx context.Context, host string, limit time.Duration) error {
	return s.repair(ctx, host, "unseen", limit)
}

// EndOrphan marks a host whose machine was seen running for up, but that is asleep or has never registered and has
// nothing queued: a sweep turns the machine off. The first call only notes it; ErrGone is returned until limit after
// that, so that a runner whose registration Redis has lost has time to register again. ErrGone: also for a host that is
// not in that state, or whose machine a sweep is already turning off.
func (s *Store) EndOrphan(ctx context.Context, host string, up, limit time.Duration) error {
	return s.repair(ctx, host, "orphan", limit, up.Milliseconds())
}

// Forget removes a host that is asleep or lost and has been silent for limit. The caller makes sure that the catalog
// does not name it. ErrGone: it does not exist. ErrWanted: it is awake, has work, or has shown a sign of life since.
func (s *Store) Forget(ctx context.Context, host string, limit time.Duration) error {
	return s.evalStatus(ctx, "forget", host, limit.Milliseconds())
}

func (s *Store) repair(ctx context.Context, host, verb string, limit time.Duration, more ...any) error {
	return s.evalStatus(ctx, "repair", append([]any{host, verb, limit.Milliseconds()}, more...)...)
}
