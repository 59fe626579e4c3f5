package api

import (
	"time"

	"reveille/infra/rpc"
)

// Kind names one row of the error table. As an error value it is the target
// for [errors.Is]: errors.Is(err, api.QueueFull).
//
// Two kinds may share a code: a code says what is wrong, a kind also where it
// happened, and so which status it has.
type Kind uint8

// The values of an OpenAI error's type.
const (
	typeInvalid    = "invalid_request_error"
	typeAuth       = "authentication_error"
	typePermission = "permission_error"
	typeConflict   = "conflict_error"
	typeRateLimit  = "rate_limit_error"
	typeServer     = "server_error"
	typeNotServed  = "not_supported_error"
	typeTimeout    = "timeout_error"
)

type row struct {
	code    string
	status  int
	typ     string
	noRetry bool          // the same request fails again: clients should not repeat it
	retry   time.Duration // when a repeat is worth while, unless the error knows better; 0 is no advice
}

const (
	final = true // see row.noRetry
	again = false
)

// table has the rows by kind; the first one is no kind's.
var table = []row{{}}

func define(code string, status int, typ string, noRetry bool, retry time.Duration) Kind {
	table = append(table, row{code, status, typ, noRetry, retry})
	return Kind(len(table) - 1)
}

// The error table, by status.
var (
	InvalidJSON              = define("invalid_json", 400, typeInvalid, final, 0)         // not one JSON object
	InvalidRequest           = define(rpc.CodeInvalidRequest, 400, typeInvalid, final, 0) // its framing or its form
	MissingRequiredParameter = define("missing_required_parameter", 400, typeInvalid, final, 0)
	InvalidType              = define("invalid_type", 400, typeInvalid, final, 0) // or value
	ModelAmbiguous           = define("model_ambiguous", 400, typeInvalid, final, 0)
	ModelTypeMismatch        = define("model_type_mismatch", 400, typeInvalid, final, 0)
	UnsupportedParameter     = define("unsupported_parameter", 400, typeInvalid, final, 0)
	ContextLengthExceeded    = define(rpc.CodeContextLength, 400, typeInvalid, final, 0)
	RemoteMediaDisabled      = define("remote_media_disabled", 400, typeInvalid, final, 0)

	InvalidAPIKey     = define("invalid_api_key", 401, typeAuth, final, 0)
	InsufficientScope = define("insufficient_scope", 403, typePermission, final, 0)
	ForbiddenHost     = define("forbidden_host", 403, typePermission, final, 0)
	ForbiddenOrigin   = define("forbidden_origin", 403, typePermission, final, 0)

	ModelNotFound     = define(rpc.CodeModelNotFound, 404, typeInvalid, final, 0)
	ModelNotLoaded    = define(rpc.CodeModelNotLoaded, 404, typeInvalid, final, 0) // only unload
	UnknownURL        = define("unknown_url", 404, typeInvalid, final, 0)
	ModelFileNotFound = define(rpc.CodeModelFileNotFound, 404, typeInvalid, final, 0)
	ResponseNotFound  = define("response_not_found", 404, typeInvalid, final, 0)

	MethodNotAllowed    = define("method_not_allowed", 405, typeInvalid, final, 0)
	RequestTimeout      = define("request_timeout", 408, typeInvalid, final, 0)       // the body did not arrive in time
	SlotsPinnedConflict = define(rpc.CodeSlotsPinned, 409, typeConflict, final, 0)    // only management routes
	ModelBusyConflict   = define(rpc.CodeModelBusy, 409, typeConflict, final, 0)      // only management routes
	OptionConflict      = define("option_conflict", 409, typeConflict, final, 0)      // only management routes
	NotLoadedConflict   = define(rpc.CodeModelNotLoaded, 409, typeConflict, final, 0) // routes that load nothing

	RequestTooLarge      = define(rpc.CodeRequestTooLarge, 413, typeInvalid, final, 0)
	UnsupportedMediaType = define("unsupported_media_type", 415, typeInvalid, final, 0)
	DeleteUnknown        = define(rpc.CodeModelNotFound, 422, typeInvalid, final, 0) // only delete
	RateLimitExceeded    = define("rate_limit_exceeded", 429, typeRateLimit, again, time.Second)
	QueueFull            = define("queue_full", 429, typeRateLimit, again, 5*time.Second)
	InsufficientQuota    = define("insufficient_quota", 429, typeRateLimit, final, 0)
	HeadersTooLarge      = define("headers_too_large", 431, typeInvalid, final, 0)

	InternalError  = define(rpc.CodeInternalError, 500, typeServer, again, 0)
	ModelLoadError = define(rpc.CodeModelLoadError, 500, typeServer, final, 0)
	ModelTooLarge  = define(rpc.CodeModelTooLarge, 500, typeServer, final, 0)
	NotSupported   = define("not_supported", 501, typeNotServed, final, 0)

	RunnerFailed   = define(rpc.CodeRunnerFailed, 502, typeServer, again, 2*time.Second)
	EngineCrashed  = define(rpc.CodeEngineCrashed, 502, typeServer, again, time.Second)
	BadEngineReply = define(rpc.CodeBadEngineReply, 502, typeServer, again, 0)

	NoCapacity        = define("no_capacity", 503, typeServer, again, 60*time.Second)
	StateUnavailable  = define("state_unavailable", 503, typeServer, again, 5*time.Second)
	ModelLoading      = define("model_loading", 503, typeServer, again, 10*time.Second)
	ModelBackoff      = define("model_backoff", 503, typeServer, again, 30*time.Second)
	ModelBusy         = define(rpc.CodeModelBusy, 503, typeServer, again, 10*time.Second)
	SlotsPinned       = define(rpc.CodeSlotsPinned, 503, typeServer, again, 60*time.Second)
	HostUnreachable   = define("host_unreachable", 503, typeServer, again, 5*time.Second)
	HostInterrupted   = define(rpc.CodeHostInterrupted, 503, typeServer, again, 30*time.Second)
	EngineOutOfMemory = define(rpc.CodeEngineOutOfMemory, 503, typeServer, again, 30*time.Second)
	Overloaded        = define(rpc.CodeOverloaded, 503, typeServer, again, 5*time.Second)
	Draining          = define(rpc.CodeDraining, 503, typeServer, again, time.Second)

	LoadTimeout     = define(rpc.CodeLoadTimeout, 504, typeTimeout, again, 30*time.Second)
	QueueTimeout    = define(rpc.CodeQueueTimeout, 504, typeTimeout, again, 10*time.Second)
	UpstreamTimeout = define(rpc.CodeUpstreamTimeout, 504, typeTimeout, again, 5*time.Second)
	DiskFull        = define(rpc.CodeDiskFull, 507, typeServer, final, 0)
)

// Kinds returns every kind in the order of their statuses.
func Kinds() []Kind {
	all := make([]Kind, len(table)-1)
	for i := range all {
		all[i] = Kind(i + 1)
	}
	return all
}

// KindOf returns the kind with that code and status, as a runner's answer
// names it; ok is false when the table has no such row.
func KindOf(code string, status int) (k Kind, ok bool) {
	for _, k := range Kinds() {
		if r := k.row(); r.code == code && r.status == status {
			return k, true
		}
	}
	return 0, false
}

func (k Kind) row() row {
	if k == 0 || int(k) >= len(table) {
		k = InternalError
	}
	return table[k]
}

// Code returns the error code clients see.
func (k Kind) Code() string { return k.row().code }

// Status returns the HTTP status in the OpenAI dialect.
func (k Kind) Status() int { return k.row().status }

// Error implements error, so that a Kind can be the target of [errors.Is].
func (k Kind) Error() string { return k.row().code }
