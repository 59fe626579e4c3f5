package state

import "errors"

// Errors of the store. Test with errors.Is.
var (
	// ErrUnavailable: Redis did not respond in time or refused, or the breaker is open. A call that was sent may or may
	// not have taken effect; scripts with an operation id can be repeated.
	ErrUnavailable = errors.New("state store unavailable")
	// ErrCorrupt: Redis holds data that an operation cannot use: a key of another type, or a field that is not a
	// number. It is also ErrUnavailable. The same call works once the keys are repaired.
	ErrCorrupt = errors.New("state store is corrupt")
	// ErrFenced: another runner has since registered this host, so the caller may no longer write it.
	ErrFenced = errors.New("fenced: another generation owns the host")
	// ErrUnknownHost: Redis has no record of the host, for example because it was emptied. Register again.
	ErrUnknownHost = errors.New("host is not registered")
	// ErrStale: the pool has changed since the placement's snapshot. Take a new one.
	ErrStale = errors.New("stale: the pool changed since the snapshot")
	// ErrGone: the ticket ended, was dropped, or was lost with Redis' data.
	ErrGone = errors.New("ticket is gone")
	// ErrDropped: the ticket was dropped because nobody waits for it any more.
	ErrDropped = errors.New("ticket was dropped: nobody is waiting for it")
	// ErrBusy: another load is in progress on the host.
	ErrBusy = errors.New("another load is in progress on the host")
	// ErrNPUHeld: other models have the host's NPU.
	ErrNPUHeld = errors.New("other models have the host's NPU")
	// ErrNeeded: the copy of a model is not spare.
	ErrNeeded = errors.New("the copy is needed")
	// ErrNotOwner: another holder has the power lease.
	ErrNotOwner = errors.New("power lease is held by another")
	// ErrStopping: the caller's machine is being turned off and is not known to be off yet.
	ErrStopping = errors.New("host is being turned off")
	// ErrAwake: the host's runner has registered, so there is nothing left to wake.
	ErrAwake = errors.New("host is awake")
)

// statusErrors maps the words that scripts return to errors; nil means success.
var statusErrors = map[string]error{
	"ok": nil, "begun": nil,
	"fenced":   ErrFenced,
	"unknown":  ErrUnknownHost,
	"gone":     ErrGone,
	"dropped":  ErrDropped,
	"busy":     ErrBusy,
	"held":     ErrNPUHeld,
	"needed":   ErrNeeded,
	"lost":     ErrNotOwner,
	"stopping": ErrStopping,
	"stale":    ErrStale,
	"wanted":   ErrWanted,
	"awake":    ErrAwake,
	"full":     ErrNoSlot,
	"recent":   ErrRecent,
}

// errorOf turns a script's word into an error, or nil for success.
func errorOf(word string) error {
	if err, known := statusErrors[word]; known {
		return err
	}
	return errors.New("unexpected status of a state script: " + word)
}
