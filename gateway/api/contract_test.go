package api

import (
	"testing"
	"time"
)

// The error table of the API contract, row by row.
func TestErrorTable(t *testing.T) {
	const (
		invalid, server = "invalid_request_error", "server_error"
		no              = true // x-should-retry: false
	)
	want := []struct {
		kind    Kind
		status  int
		typ     string
		code    string
		noRetry bool
		retry   int // seconds
	}{
		{InvalidJSON, 400, invalid, "invalid_json", no, 0},
		{InvalidRequest, 400, invalid, "invalid_request", no, 0},
		{MissingRequiredParameter, 400, invalid, "missing_required_parameter", no, 0},
		{InvalidType, 400, invalid, "invalid_type", no, 0},
		{ModelAmbiguous, 400, invalid, "model_ambiguous", no, 0},
		{ModelTypeMismatch, 400, invalid, "model_type_mismatch", no, 0},
		{UnsupportedParameter, 400, invalid, "unsupported_parameter", no, 0},
		{ContextLengthExceeded, 400, invalid, "context_length_exceeded", no, 0},
		{RemoteMediaDisabled, 400, invalid, "remote_media_disabled", no, 0},
		{InvalidAPIKey, 401, "authentication_error", "invalid_api_key", no, 0},
		{InsufficientScope, 403, "permission_error", "insufficient_scope", no, 0},
		{ForbiddenHost, 403, "permission_error", "forbidden_host", no, 0},
		{ForbiddenOrigin, 403, "permission_error", "forbidden_origin", no, 0},
		{ModelNotFound, 404, invalid, "model_not_found", no, 0},
		{ModelNotLoaded, 404, invalid, "model_not_loaded", no, 0},
		{UnknownURL, 404, invalid, "unknown_url", no, 0},
		{ModelFileNotFound, 404, invalid, "model_file_not_found", no, 0},
		{ResponseNotFound, 404, invalid, "response_not_found", no, 0},
		{MethodNotAllowed, 405, invalid, "method_not_allowed", no, 0},
		{RequestTimeout, 408, invalid, "request_timeout", no, 0},
		{SlotsPinnedConflict, 409, "conflict_error", "slots_pinned_error", no, 0},
		{ModelBusyConflict, 409, "conflict_error", "model_busy", no, 0},
		{OptionConflict, 409, "conflict_error", "option_conflict", no, 0},
		{NotLoadedConflict, 409, "conflict_error", "model_not_loaded", no, 0},
		{RequestTooLarge, 413, invalid, "request_too_large", no, 0},
		{UnsupportedMediaType, 415, invalid, "unsupported_media_type", no, 0},
		{DeleteUnknown, 422, invalid, "model_not_found", no, 0},
		{RateLimitExceeded, 429, "rate_limit_error", "rate_limit_exceeded", false, 1},
		{QueueFull, 429, "rate_limit_error", "queue_full", false, 5},
		{InsufficientQuota, 429, "rate_limit_error", "insufficient_quota", no, 0},
		{HeadersTooLarge, 431, invalid, "headers_too_large", no, 0},
		{InternalError, 500, server, "internal_error", false, 0},
		{ModelLoadError, 500, server, "model_load_error", no, 0},
		{ModelTooLarge, 500, server, "model_too_large", no, 0},
		{NotSupported, 501, "not_supported_error", "not_supported", no, 0},
		{RunnerFailed, 502, server, "runner_failed", false, 2},
		{EngineCrashed, 502, server, "engine_crashed", false, 1},
		{BadEngineReply, 502, server, "bad_engine_reply", false, 0},
		{NoCapacity, 503, server, "no_capacity", false, 60},
		{StateUnavailable, 503, server, "state_unavailable", false, 5},
		{ModelLoading, 503, server, "model_loading", false, 10},
		{ModelBackoff, 503, server, "model_backoff", false, 30},
		{ModelBusy, 503, server, "model_busy", false, 10},
		{SlotsPinned, 503, server, "slots_pinned_error", false, 60},
		{HostUnreachable, 503, server, "host_unreachable", false, 5},
		{HostInterrupted, 503, server, "host_interrupted", false, 30},
		{EngineOutOfMemory, 503, server, "engine_out_of_memory", false, 30},
		{Overloaded, 503, server, "overloaded", false, 5},
		{Draining, 503, server, "draining", false, 1},
		{LoadTimeout, 504, "timeout_error", "load_timeout", false, 30},
		{QueueTimeout, 504, "timeout_error", "queue_timeout", false, 10},
		{UpstreamTimeout, 504, "timeout_error", "upstream_timeout", false, 5},
		{DiskFull, 507, server, "disk_full", no, 0},
	}
	if len(want) != len(Kinds()) {
		t.Errorf("%d rows spelled out, the table has %d", len(want), len(Kinds()))
	}
	for i, w := range want {
		e := New(w.kind, "text")
		if w.kind != Kinds()[i] {
			t.Errorf("row %d is %v, want %s", i, Kinds()[i], w.code)
		}
		if e.Status != w.status || e.Type != w.typ || e.Code != w.code || e.NoRetry != w.noRetry || e.RetryAfter != time.Duration(w.retry)*time.Second {
			t.Errorf("%s = %+v, want %+v", w.code, e, w)
		}
		if k, ok := KindOf(w.code, w.status); !ok || k != w.kind {
			t.Errorf("KindOf(%s, %d) = %v, %v", w.code, w.status, k, ok)
		}
	}
}
