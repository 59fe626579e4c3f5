package batch

import (
	"errors"
	"fmt"

	"reveille/infra/rpc"
)

// ErrNotBatched: the request has a form that cannot be joined with others. Nothing was sent: the caller relays it
// unchanged, and the engine answers it.
var ErrNotBatched = errors.New("not an embedding request that can share a call")

// Errors of requests whose engine ends or cannot be reached.
var (
	// ErrUnsent: the engine received nothing of the request, which can safely be made elsewhere.
	ErrUnsent = errors.New("the engine ended before any of the request was sent to it")
	// ErrCut: all or part of the request was sent, or may have been.
	ErrCut = errors.New("the engine ended before the request was answered")
)

// lost returns ErrCut if part of the request may have been sent, otherwise ErrUnsent.
func lost(sent bool) error {
	if sent {
		return ErrCut
	}
	return ErrUnsent
}

// Error is an error answer from the queue itself. Code is one of infra/rpc; Message may be shown to clients.
type Error struct {
	Status        int
	Code, Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// EngineError is an engine's answer that is not an embedding. It is passed on unchanged.
type EngineError struct {
	Status int
	Body   []byte
}

// Error names the status.
func (e *EngineError) Error() string {
	return fmt.Sprintf("the engine answered with status %d", e.Status)
}

func tooLong(index, tokens, longest int) *Error {
	return &Error{Status: 400, Code: rpc.CodeContextLength, Message: fmt.Sprintf(
		"Input %d has %d tokens with the model's special ones; the longest this model takes has %d.", index, tokens, longest)}
}

func outOfMemory(tokens, tries int, reason string) *Error {
	return &Error{Status: 503, Code: rpc.CodeEngineOutOfMemory, Message: fmt.Sprintf(
		"The engine ran out of memory, last with %d tokens in one call (try %d): %s", tokens, tries, reason)}
}

func badReply(err error) *Error {
	return &Error{Status: 502, Code: rpc.CodeBadEngineReply, Message: "The model's answer could not be used: " + err.Error() + "."}
}
