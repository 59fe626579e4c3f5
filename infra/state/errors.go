package state

import "errors"

// Errors of the store. Test with errors.Is.
var (
	// ErrUnavailable: Redis did not answer in time, refused, or the breaker is open. Nothing is known of the effect of a
	// call that had been sent; scripts with an operation id may be repeated.
	ErrUnavailable = errors.New("state store unavailable")
	// ErrCorrupt: Redis holds what an operation cannot work with: a key of another type, a field that is no number, more
	// than a reply may have. It is ErrUnavailable as well; the same call works once the keys are mended.
	ErrCorrupt = errors.New("state store is corrupt")
	// ErrFenced: another runner has registered this host since; the caller may write it no more.
	ErrFenced = errors.New("fenced: another generation owns the host")
	// ErrUnknownHost: Redis has no record of the host (it was emptied): register again.
	ErrUnknownHost = errors.New("host is not registered")
	// ErrStale: the pool changed since the snapshot that a placement was made on; take a new one.
	ErrStale = errors.New("stale: the pool changed since the snapshot")
	// ErrGone: the ticket ended, was dropped, or was lost with Redis' data.
	ErrGone = errors.New("ticket is gone")
	// ErrDropped: nobody waits for the ticket any more.
	ErrDropped = errors.New("ticket was dropped: nobody waits for it")
	// ErrBusy: another load is under way on the host.
	ErrBusy = errors.New("another load is under way on the host")
	// ErrNotOwner: another holds the wake duty.
	ErrNotOwner = errors.New("wake duty is held by another")
	// ErrStopping: the machine of the caller's host was told to go off and is not known to be off.
	ErrStopping = errors.New("host is being turned off")
	// ErrAwake: the host's runner has registered, there is nothing left to wake.
	ErrAwake = errors.New("host is awake")
)

// wordErrors are the errors that the words of scripts stand for, nil for success.
var wordErrors = map[string]error{
	"ok": nil, "begun": nil,
	"fenced":   ErrFenced,
	"unknown":  ErrUnknownHost,
	"gone":     ErrGone,
	"dropped":  ErrDropped,
	"busy":     ErrBusy,
	"lost":     ErrNotOwner,
	"stopping": ErrStopping,
	"stale":    ErrStale,
	"wanted":   ErrWanted,
	"awake":    ErrAwake,
}

// errorOf turns a script's word into an error, nil for success.
func errorOf(word string) error {
	if err, known := wordErrors[word]; known {
		return err
	}
	return errors.New("state script answered " + word)
}
