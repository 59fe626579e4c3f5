package weights

import (
	"context"
	"errors"
)

// Errors of a pull. They are wrapped in an [*Error].
var (
	// ErrNotFound: the bucket, repository, revision or file does not exist.
	ErrNotFound = errors.New("not found")
	// ErrDenied: the source needs credentials, or refuses the given ones.
	ErrDenied = errors.New("access denied")
	// ErrUnclear: the location does not name the files of one model, or they cannot be files on this host.
	ErrUnclear = errors.New("does not name one model")
	// ErrFull: the disk or the cache's limit lacks space, even without all idle entries.
	ErrFull = errors.New("not enough disk space")
	// ErrDigest: the received bytes do not match their checksum.
	ErrDigest = errors.New("checksum mismatch")
	// ErrChanged: the source has changed since the pull started.
	ErrChanged = errors.New("changed during the pull")
	// ErrFetch: the source could not be reached or failed repeatedly.
	ErrFetch = errors.New("fetch failed")
)

// ErrInUse: another process owns the cache's folder.
var ErrInUse = errors.New("the weights folder is in use by another process")

// An Error is a pull that failed.
type Error struct {
	Location string // as the catalog names it
	Kind     error  // one of the errors above
	Note     string // details for clients, such as a file's name, a status or sizes; "" for none
	Cause    error  // for logs: can contain URLs and paths, never secrets; nil for none
}

// Message returns the error's text for clients, without URLs and paths of this host.
func (e *Error) Message() string {
	text := e.Location + ": " + e.Kind.Error()
	if e.Note != "" {
		text += ": " + e.Note
	}
	return text
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Message()
	}
	return e.Message() + ": " + e.Cause.Error()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// pullError turns err into the error of a location's pull. It returns the error of an ended context unchanged.
func pullError(at Location, err error) error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		copied := *e
		copied.Location = at.String()
		return &copied
	case errors.Is(err, context.Canceled):
		return err
	}
	return &Error{Location: at.String(), Kind: ErrFetch, Cause: err}
}

// isFinal reports whether a retry cannot help.
func isFinal(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind != ErrFetch
}
