package host

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"reveille/infra/policy"
	"reveille/infra/redact"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/plan"
	"reveille/runner/sandbox"
)

// Error is a ticket's outcome for clients: an error-table code and a message without paths.
type Error struct {
	Code    string
	Message string
	Final   bool  // clearing the host cannot help: rule 6 does not apply
	Cause   error // for logs
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// clearingHelps reports whether a failed load might succeed on an empty host (rule 6): its engine ran out of memory, or
// crashed without a known cause, but not at its start.
func clearingHelps(err error) bool {
	if errors.Is(err, engine.ErrOutOfMemory) {
		return true
	}
	if exit, ok := errors.AsType[*engine.ExitError](err); ok && exit.Early {
		return false
	}
	var e *Error
	_, known := errors.AsType[*engine.LoadError](err)
	return !known && !(errors.As(err, &e) && e.Final) && !errors.Is(err, engine.ErrNoProgram) && !errors.Is(err, fs.ErrPermission) &&
		!errors.Is(err, sandbox.ErrMissing)
}

// failure turns an error into a ticket's outcome. Only the messages of *Error are used unchanged. Others may quote an
// engine's last output and are redacted.
func failure(err error) state.Outcome {
	code, message := rpc.CodeModelLoadError, ""
	var e *Error
	switch {
	case errors.As(err, &e):
		code, message = e.Code, e.Message
	case errors.Is(err, engine.ErrFileNotFound):
		code = rpc.CodeModelFileNotFound
	case errors.Is(err, engine.ErrLoadTimeout):
		code = rpc.CodeLoadTimeout
	case errors.Is(err, engine.ErrOutOfMemory):
		code = rpc.CodeEngineOutOfMemory
	}
	if message == "" {
		message = redact.Failure(err.Error())
	}
	return state.Outcome{Failed: true, Fields: map[string]string{"code": code, "message": message}}
}

// refusal turns a refused load into a ticket's outcome. For lack of memory, it lists the parts of the load's need and
// includes the figures, with which gateways try the next host.
func refusal(r policy.Refusal, p *plan.Plan) state.Outcome {
	out := state.Outcome{Failed: true, Fields: map[string]string{"code": rpc.CodeModelLoadError}}
	r.Parts = p.Parts()
	switch r.Code {
	case policy.TooLarge:
		out.Fields["code"] = rpc.CodeModelTooLarge
		out.Fields["device"], out.Fields["parts"], out.Fields["cards"] = r.Device.String(), r.Parts, r.GPUs
		out.Fields["need"], out.Fields["budget"] = strconv.FormatInt(r.Need, 10), strconv.FormatInt(r.Budget, 10)
		out.Fields["others"] = strconv.FormatInt(r.Others, 10)
	case policy.SlotsPinned:
		out.Fields["code"] = rpc.CodeSlotsPinned
	}
	out.Fields["message"] = r.Error()
	return out
}

// errNotInCatalog: the catalog or the recipes on this host lack the model or its recipe. A newer version may have it.
var errNotInCatalog = errors.New("not in the catalog")

// errNotRegistered: Redis lacks some of this host's state. Nothing is written until the host has registered again.
var errNotRegistered = fmt.Errorf("%w: the host is not registered", state.ErrUnavailable)

// isTicketGone reports whether err means that Redis no longer has the ticket.
func isTicketGone(err error) bool {
	return errors.Is(err, state.ErrDropped) || errors.Is(err, state.ErrGone)
}
