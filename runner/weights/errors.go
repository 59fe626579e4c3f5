package weights

import (
	"context"
	"errors"
)

// What a pull can fail with. They are wrapped in an [*Error].
var (
	// ErrNotFound: there is no such bucket, repository, revision or file.
	ErrNotFound = errors.New("it is not there")
	// ErrDenied: the source needs credentials, or refuses the given ones.
	ErrDenied = errors.New("access denied")
	// ErrUnclear: what is there is not the files of one model, or cannot be files on this host.
	ErrUnclear = errors.New("it does not name one model")
	// ErrFull: neither the disk nor the cache's limit has room, even without all idle entries.
	ErrFull = errors.New("there is no room for it on the disk")
	// ErrDigest: the received bytes do not match their checksum.
	ErrDigest = errors.New("its bytes do not match their checksum")
	// ErrChanged: the source has other bytes now than when the pull began.
	ErrChanged = errors.New("it changed while it was fetched")
	// ErrFetch: the source could not be reached or broke off, again and again.
	ErrFetch = errors.New("it could not be fetched")
)

// ErrInUse: another process owns the cache's folder.
var ErrInUse = errors.New("the folder of weights is used by another process")

// An Error is a pull that failed.
type Error struct {
	Location string // as the catalog names it
	Kind     error  // one of the errors above
	Note     string // what else a client may know: a file's name, a status, sizes; "" nothing
	Cause    error  // for logs: may name URLs and paths, never secrets; nil none
}

// Message is the error in words for clients, without URLs and paths of this host.
func (e *Error) Message() string {
	text := e.Location + ": " + e.Kind.Error()
	if e.Note != "" {
		text += ": " + e.Note
	}
	return text
}

// Error is the message and the cause.
func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Message()
	}
	return e.Message() + ": " + e.Cause.Error()
}

// Unwrap gives errors.Is and errors.As the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// failed turns err into the error of a location's pull. The error of an ended context stays as it is.
func failed(at Location, err error) error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		own := *e
		own.Location = at.String()
		return &own
	case errors.Is(err, context.Canceled):
		return err
	}
	return &Error{Location: at.String(), Kind: ErrFetch, Cause: err}
}

// final reports whether trying again is no use.
func final(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind != ErrFetch
}
