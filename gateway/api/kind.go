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
	retry   time.Duration // when to retry, unless the error sets its own time; 0: no advice
}

const (
	notRetryable = true // see row.noRetry
	retryable    = false
)

// kindTable has the rows by kind; index 0 is unused.
var kindTable = []row{{}}

func addKind(code string, status int, typ string, noRetry bool, retry time.Duration) Kind {
	kindTable = append(kindTable, row{code, status, typ, noRetry, retry})
	return Kind(len(kindTable) - 1)
}

// The error table, by status.
var (
	InvalidJSON              = addKind("invalid_json", 400, typeInvalid, notRetryable, 0)         // not one JSON object
	InvalidRequest           = addKind(rpc.CodeInvalidRequest, 400, typeInvalid, notRetryable, 0) // its framing or its form
	MissingRequiredParameter = addKind("missing_required_parameter", 400, typeInvalid, notRetryable, 0)
	InvalidType              = addKind("invalid_type", 400, typeInvalid, notRetryable, 0) // or value
	ModelAmbiguous           = addKind("model_ambiguous", 400, typeInvalid, notRetryable, 0)
	ModelTypeMismatch        = addKind("model_type_mismatch", 400, typeInvalid, notRetryable, 0)
	UnsupportedParameter     = addKind("unsupported_parameter", 400, typeInvalid, notRetryable, 0)
	ContextLengthExceeded    = addKind(rpc.CodeContextLength, 400, typeInvalid, notRetryable, 0)
	RemoteMediaDisabled      = addKind("remote_media_disabled", 400, typeInvalid, notRetryable, 0)

	InvalidAPIKey     = addKind("invalid_api_key", 401, typeAuth, notRetryable, 0)
	InsufficientScope = addKind("insufficient_scope", 403, typePermission, notRetryable, 0)
	ForbiddenHost     = addKind("forbidden_host", 403, typePermission, notRetryable, 0)
	ForbiddenOrigin   = addKind("forbidden_origin", 403, typePermission, notRetryable, 0)

	ModelNotFound     = addKind(rpc.CodeModelNotFound, 404, typeInvalid, notRetryable, 0)
	ModelNotLoaded    = addKind(rpc.CodeModelNotLoaded, 404, typeInvalid, notRetryable, 0) // only unload
	UnknownURL        = addKind("unknown_url", 404, typeInvalid, notRetryable, 0)
	ModelFileNotFound = addKind(rpc.CodeModelFileNotFound, 404, typeInvalid, notRetryable, 0)
	ResponseNotFound  = addKind("response_not_found", 404, typeInvalid, notRetryable, 0)

	FileNotFound  = addKind("file_not_found", 404, typeInvalid, notRetryable, 0)
	BatchNotFound = addKind("batch_not_found", 404, typeInvalid, notRetryable, 0)

	MethodNotAllowed    = addKind("method_not_allowed", 405, typeInvalid, notRetryable, 0)
	RequestTimeout      = addKind("request_timeout", 408, typeInvalid, notRetryable, 0)       // the body did not arrive in time
	SlotsPinnedConflict = addKind(rpc.CodeSlotsPinned, 409, typeConflict, notRetryable, 0)    // only management routes
	ModelBusyConflict   = addKind(rpc.CodeModelBusy, 409, typeConflict, notRetryable, 0)      // only management routes
	OptionConflict      = addKind("option_conflict", 409, typeConflict, notRetryable, 0)      // only management routes
	FileInUse           = addKind("file_in_use", 409, typeConflict, notRetryable, 0)          // by a batch
	BatchEnded          = addKind("batch_ended", 409, typeConflict, notRetryable, 0)          // only cancel
	NotLoadedConflict   = addKind(rpc.CodeModelNotLoaded, 409, typeConflict, notRetryable, 0) // routes that load nothing

	RequestTooLarge      = addKind(rpc.CodeRequestTooLarge, 413, typeInvalid, notRetryable, 0)
	UnsupportedMediaType = addKind("unsupported_media_type", 415, typeInvalid, notRetryable, 0)
	DeleteUnknown        = addKind(rpc.CodeModelNotFound, 422, typeInvalid, notRetryable, 0) // only delete
	RateLimitExceeded    = addKind("rate_limit_exceeded", 429, typeRateLimit, retryable, time.Second)
	QueueFull            = addKind("queue_full", 429, typeRateLimit, retryable, 5*time.Second)
	InsufficientQuota    = addKind("insufficient_quota", 429, typeRateLimit, notRetryable, 0)
	HeadersTooLarge      = addKind("headers_too_large", 431, typeInvalid, notRetryable, 0)

	InternalError  = addKind(rpc.CodeInternalError, 500, typeServer, retryable, 0)
	ModelLoadError = addKind(rpc.CodeModelLoadError, 500, typeServer, notRetryable, 0)
	ModelTooLarge  = addKind(rpc.CodeModelTooLarge, 500, typeServer, notRetryable, 0)
	NotSupported   = addKind("not_supported", 501, typeNotServed, notRetryable, 0)

	RunnerFailed   = addKind(rpc.CodeRunnerFailed, 502, typeServer, retryable, 2*time.Second)
	EngineCrashed  = addKind(rpc.CodeEngineCrashed, 502, typeServer, retryable, time.Second)
	BadEngineReply = addKind(rpc.CodeBadEngineReply, 502, typeServer, retryable, 0)

	NoCapacity        = addKind("no_capacity", 503, typeServer, retryable, 60*time.Second)
	DailyHostHours    = addKind("daily_host_hours", 503, typeServer, retryable, 60*time.Second)
	HostResting       = addKind("host_resting", 503, typeServer, retryable, 60*time.Second)
	StateUnavailable  = addKind("state_unavailable", 503, typeServer, retryable, 5*time.Second)
	ModelLoading      = addKind("model_loading", 503, typeServer, retryable, 10*time.Second)
	ModelBackoff      = addKind("model_backoff", 503, typeServer, retryable, 30*time.Second)
	ModelBusy         = addKind(rpc.CodeModelBusy, 503, typeServer, retryable, 10*time.Second)
	SlotsPinned       = addKind(rpc.CodeSlotsPinned, 503, typeServer, retryable, 60*time.Second)
	HostUnreachable   = addKind("host_unreachable", 503, typeServer, retryable, 5*time.Second)
	HostInterrupted   = addKind(rpc.CodeHostInterrupted, 503, typeServer, retryable, 30*time.Second)
	EngineOutOfMemory = addKind(rpc.CodeEngineOutOfMemory, 503, typeServer, retryable, 30*time.Second)
	Overloaded        = addKind(rpc.CodeOverloaded, 503, typeServer, retryable, 5*time.Second)
	Background        = addKind("background", 503, typeServer, retryable, 2*time.Minute) // its model is not loaded, and it loads none
	Draining          = addKind(rpc.CodeDraining, 503, typeServer, retryable, time.Second)

	LoadTimeout     = addKind(rpc.CodeLoadTimeout, 504, typeTimeout, retryable, 30*time.Second)
	QueueTimeout    = addKind(rpc.CodeQueueTimeout, 504, typeTimeout, retryable, 10*time.Second)
	UpstreamTimeout = addKind(rpc.CodeUpstreamTimeout, 504, typeTimeout, retryable, 5*time.Second)
	DiskFull        = addKind(rpc.CodeDiskFull, 507, typeServer, notRetryable, 0)
)

// Kinds returns every kind in the order of their statuses.
func Kinds() []Kind {
	all := make([]Kind, len(kindTable)-1)
	for i := range all {
		all[i] = Kind(i + 1)
	}
	return all
}

// KindOf returns the kind with that code and status, as a runner's response
// names it; ok is false when the table has no such row.
func KindOf(code string, status int) (k Kind, ok bool) {
	for _, k := range Kinds() {
		if r := k.row(); r.code == code && r.status == status {
			return k, true
		}
	}
	return 0, false
}

func (k Kind) row() row { return kindTable[k] }

// Code returns the error code clients see.
func (k Kind) Code() string { return k.row().code }

// Status returns the HTTP status in the OpenAI dialect.
func (k Kind) Status() int { return k.row().status }

// Error implements error, so that a Kind can be the target of [errors.Is].
func (k Kind) Error() string { return k.row().code }
