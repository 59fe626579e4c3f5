package rpc

// Codes of the error table (gateway/api) that runners give.
const (
	CodeInvalidRequest    = "invalid_request"
	CodeContextLength     = "context_length_exceeded"
	CodeRequestTooLarge   = "request_too_large"
	CodeModelNotFound     = "model_not_found"
	CodeModelNotLoaded    = "model_not_loaded"
	CodeModelFileNotFound = "model_file_not_found"
	CodeModelBusy         = "model_busy"
	CodeModelLoadError    = "model_load_error"
	CodeModelTooLarge     = "model_too_large"
	CodeSlotsPinned       = "slots_pinned_error"
	CodeInternalError     = "internal_error"
	CodeBadEngineReply    = "bad_engine_reply"
	CodeQueueTimeout      = "queue_timeout"
	CodeLoadTimeout       = "load_timeout"
	CodeEngineOutOfMemory = "engine_out_of_memory"
	CodeEngineCrashed     = "engine_crashed"
	CodeRunnerFailed      = "runner_failed"
	CodeHostInterrupted   = "host_interrupted"
	CodeUpstreamTimeout   = "upstream_timeout"
	CodeOverloaded        = "overloaded"
	CodeDraining          = "draining"
	CodeDiskFull          = "disk_full"
)
