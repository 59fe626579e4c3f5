package api

import (
	"net/http"
	"time"

	"reveille/infra/rpc"
)

// Kind names one row of the error table. As an error value it is the target
// for [errors.Is]: errors.Is(err, api.QueueFull).
//
// Two kinds may share a code: a code says what is wrong, a kind also where it
// happened, and so which status it has.
type Kind uint8

// The error table's rows, by status.
const (
	_ Kind = iota

	InvalidJSON              // 400, the body is not one JSON object
	InvalidRequest           // 400, the request itself is malformed: framing, form data
	MissingRequiredParameter // 400
	InvalidType              // 400, a field has the wrong JSON type or an impossible value
	ModelAmbiguous           // 400
	ModelTypeMismatch        // 400
	UnsupportedParameter     // 400
	ContextLengthExceeded    // 400
	RemoteMediaDisabled      // 400
	InvalidAPIKey            // 401
	InsufficientScope        // 403
	ForbiddenHost            // 403
	ForbiddenOrigin          // 403
	ModelNotFound            // 404
	ModelNotLoaded           // 404, only unload
	UnknownURL               // 404
	ModelFileNotFound        // 404
	ResponseNotFound         // 404
	MethodNotAllowed         // 405
	RequestTimeout           // 408, the body did not arrive in time
	SlotsPinnedConflict      // 409, only management routes
	ModelBusyConflict        // 409, only management routes
	OptionConflict           // 409, only management routes
	NotLoadedConflict        // 409, only routes that look at an engine without loading it
	RequestTooLarge          // 413
	UnsupportedMediaType     // 415
	DeleteUnknown            // 422, only delete
	RateLimitExceeded        // 429
	QueueFull                // 429
	InsufficientQuota        // 429
	HeadersTooLarge          // 431
	InternalError            // 500
	ModelLoadError           // 500
	ModelTooLarge            // 500
	NotSupported             // 501
	RunnerFailed             // 502
	EngineCrashed            // 502
	BadEngineReply           // 502
	NoCapacity               // 503
	StateUnavailable         // 503
	ModelLoading             // 503
	ModelBackoff             // 503
	ModelBusy                // 503
	SlotsPinned              // 503
	HostUnreachable          // 503
	HostInterrupted          // 503
	EngineOutOfMemory        // 503
	Overloaded               // 503
	Draining                 // 503
	LoadTimeout              // 504
	QueueTimeout             // 504
	UpstreamTimeout          // 504
	DiskFull                 // 507

	kinds // count
)

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

var table = [kinds]row{
	InvalidJSON:              {"invalid_json", http.StatusBadRequest, typeInvalid, final, 0},
	InvalidRequest:           {rpc.CodeInvalidRequest, http.StatusBadRequest, typeInvalid, final, 0},
	MissingRequiredParameter: {"missing_required_parameter", http.StatusBadRequest, typeInvalid, final, 0},
	InvalidType:              {"invalid_type", http.StatusBadRequest, typeInvalid, final, 0},
	ModelAmbiguous:           {"model_ambiguous", http.StatusBadRequest, typeInvalid, final, 0},
	ModelTypeMismatch:        {"model_type_mismatch", http.StatusBadRequest, typeInvalid, final, 0},
	UnsupportedParameter:     {"unsupported_parameter", http.StatusBadRequest, typeInvalid, final, 0},
	ContextLengthExceeded:    {rpc.CodeContextLength, http.StatusBadRequest, typeInvalid, final, 0},
	RemoteMediaDisabled:      {"remote_media_disabled", http.StatusBadRequest, typeInvalid, final, 0},

	InvalidAPIKey:     {"invalid_api_key", http.StatusUnauthorized, typeAuth, final, 0},
	InsufficientScope: {"insufficient_scope", http.StatusForbidden, typePermission, final, 0},
	ForbiddenHost:     {"forbidden_host", http.StatusForbidden, typePermission, final, 0},
	ForbiddenOrigin:   {"forbidden_origin", http.StatusForbidden, typePermission, final, 0},

	ModelNotFound:     {rpc.CodeModelNotFound, http.StatusNotFound, typeInvalid, final, 0},
	ModelNotLoaded:    {rpc.CodeModelNotLoaded, http.StatusNotFound, typeInvalid, final, 0},
	UnknownURL:        {"unknown_url", http.StatusNotFound, typeInvalid, final, 0},
	ModelFileNotFound: {rpc.CodeModelFileNotFound, http.StatusNotFound, typeInvalid, final, 0},
	ResponseNotFound:  {"response_not_found", http.StatusNotFound, typeInvalid, final, 0},

	MethodNotAllowed:    {"method_not_allowed", http.StatusMethodNotAllowed, typeInvalid, final, 0},
	RequestTimeout:      {"request_timeout", http.StatusRequestTimeout, typeInvalid, final, 0},
	SlotsPinnedConflict: {rpc.CodeSlotsPinned, http.StatusConflict, typeConflict, final, 0},
	ModelBusyConflict:   {rpc.CodeModelBusy, http.StatusConflict, typeConflict, final, 0},
	OptionConflict:      {"option_conflict", http.StatusConflict, typeConflict, final, 0},
	NotLoadedConflict:   {rpc.CodeModelNotLoaded, http.StatusConflict, typeConflict, final, 0},

	RequestTooLarge:      {rpc.CodeRequestTooLarge, http.StatusRequestEntityTooLarge, typeInvalid, final, 0},
	UnsupportedMediaType: {"unsupported_media_type", http.StatusUnsupportedMediaType, typeInvalid, final, 0},
	DeleteUnknown:        {rpc.CodeModelNotFound, http.StatusUnprocessableEntity, typeInvalid, final, 0},
	RateLimitExceeded:    {"rate_limit_exceeded", http.StatusTooManyRequests, typeRateLimit, again, time.Second},
	QueueFull:            {"queue_full", http.StatusTooManyRequests, typeRateLimit, again, 5 * time.Second},
	InsufficientQuota:    {"insufficient_quota", http.StatusTooManyRequests, typeRateLimit, final, 0},
	HeadersTooLarge:      {"headers_too_large", http.StatusRequestHeaderFieldsTooLarge, typeInvalid, final, 0},

	InternalError:  {rpc.CodeInternalError, http.StatusInternalServerError, typeServer, again, 0},
	ModelLoadError: {rpc.CodeModelLoadError, http.StatusInternalServerError, typeServer, final, 0},
	ModelTooLarge:  {rpc.CodeModelTooLarge, http.StatusInternalServerError, typeServer, final, 0},
	NotSupported:   {"not_supported", http.StatusNotImplemented, typeNotServed, final, 0},

	RunnerFailed:   {rpc.CodeRunnerFailed, http.StatusBadGateway, typeServer, again, 2 * time.Second},
	EngineCrashed:  {rpc.CodeEngineCrashed, http.StatusBadGateway, typeServer, again, time.Second},
	BadEngineReply: {rpc.CodeBadEngineReply, http.StatusBadGateway, typeServer, again, 0},

	NoCapacity:        {"no_capacity", http.StatusServiceUnavailable, typeServer, again, 60 * time.Second},
	StateUnavailable:  {"state_unavailable", http.StatusServiceUnavailable, typeServer, again, 5 * time.Second},
	ModelLoading:      {"model_loading", http.StatusServiceUnavailable, typeServer, again, 10 * time.Second},
	ModelBackoff:      {"model_backoff", http.StatusServiceUnavailable, typeServer, again, 30 * time.Second},
	ModelBusy:         {rpc.CodeModelBusy, http.StatusServiceUnavailable, typeServer, again, 10 * time.Second},
	SlotsPinned:       {rpc.CodeSlotsPinned, http.StatusServiceUnavailable, typeServer, again, 60 * time.Second},
	HostUnreachable:   {"host_unreachable", http.StatusServiceUnavailable, typeServer, again, 5 * time.Second},
	HostInterrupted:   {rpc.CodeHostInterrupted, http.StatusServiceUnavailable, typeServer, again, 30 * time.Second},
	EngineOutOfMemory: {rpc.CodeEngineOutOfMemory, http.StatusServiceUnavailable, typeServer, again, 30 * time.Second},
	Overloaded:        {rpc.CodeOverloaded, http.StatusServiceUnavailable, typeServer, again, 5 * time.Second},
	Draining:          {rpc.CodeDraining, http.StatusServiceUnavailable, typeServer, again, time.Second},

	LoadTimeout:     {rpc.CodeLoadTimeout, http.StatusGatewayTimeout, typeTimeout, again, 30 * time.Second},
	QueueTimeout:    {rpc.CodeQueueTimeout, http.StatusGatewayTimeout, typeTimeout, again, 10 * time.Second},
	UpstreamTimeout: {rpc.CodeUpstreamTimeout, http.StatusGatewayTimeout, typeTimeout, again, 5 * time.Second},
	DiskFull:        {rpc.CodeDiskFull, http.StatusInsufficientStorage, typeServer, final, 0},
}

// Kinds returns every kind in the order of their statuses.
func Kinds() []Kind {
	all := make([]Kind, 0, kinds-1)
	for k := Kind(1); k < kinds; k++ {
		all = append(all, k)
	}
	return all
}

// KindOf returns the kind with that code and status, as a runner's answer
// names it; ok is false when the table has no such row.
func KindOf(code string, status int) (k Kind, ok bool) {
	for k := Kind(1); k < kinds; k++ {
		if table[k].code == code && table[k].status == status {
			return k, true
		}
	}
	return 0, false
}

func (k Kind) row() row {
	if k == 0 || k >= kinds {
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
