package batch

import (
	"errors"
	"fmt"

	"reveille/infra/rpc"
)

// ErrNotBatched: the request has a form that cannot share a call, or its tokens could not be counted. No embeddings
// were computed: the caller relays it unchanged.
var ErrNotBatched = errors.New("request cannot share an engine call")

// Errors of requests whose engine exits or cannot be reached.
var (
	// ErrUnsent: the engine received nothing of the request, which can safely be made elsewhere.
	ErrUnsent = errors.New("the engine exited before any of the request was sent")
	// ErrIncomplete: all or part of the request was sent, or may have been.
	ErrIncomplete = errors.New("the engine exited before the response was complete")
)

// unsentOrIncomplete returns ErrIncomplete if part of the request may have been sent, otherwise ErrUnsent.
func unsentOrIncomplete(sent bool) error {
	if sent {
		return ErrIncomplete
	}
	return ErrUnsent
}

// Error is an error response of the queue itself. Code is one of infra/rpc. Message can be shown to clients.
type Error struct {
	Status        int
	Code, Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// EngineError is an engine's response that is not an embedding. It is relayed unchanged.
type EngineError struct {
	Status int
	Body   []byte
}

// Error returns a message with the status.
func (e *EngineError) Error() string {
	return fmt.Sprintf("the engine responded with status %d", e.Status)
}

func tooLong(index, tokens, longest int) *Error {
	return &Error{Status: 400, Code: rpc.CodeContextLength, Message: fmt.Sprintf(
		"Input %d has %d tokens, including the model's special tokens; the model's maximum is %d.", index, tokens, longest)}
}

func outOfMemoryError(tokens, tries int, reason string) *Error {
	return &Error{Status: 503, Code: rpc.CodeEngineOutOfMemory, Message: fmt.Sprintf(
		"The engine ran out of memory with %d tokens in one call (try %d): %s", tokens, tries, reason)}
}

func badReply(err error) *Error {
	return &Error{Status: 502, Code: rpc.CodeBadEngineReply, Message: "The engine sent an invalid response: " + err.Error() + "."}
}
