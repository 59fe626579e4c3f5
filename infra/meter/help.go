package meter

import "strings"

// Names of the runners' metrics, and of their sums over the pool.
const (
	RunnerPrefix = "reveille_runner_"
	PoolPrefix   = "reveille_pool_"
)

// Help says what a metric family counts. It is never empty.
func Help(family string) string {
	if text := help[family]; text != "" {
		return text
	}
	rest, ofPool := strings.CutPrefix(family, PoolPrefix)
	switch text := help[RunnerPrefix+rest]; {
	case ofPool && text != "":
		return text + ", of all awake runners"
	case strings.HasPrefix(family, "go_"):
		return "of the Go runtime"
	}
	return "of the process"
}

// help is the text of infra/docs/metrics.md.
var help = map[string]string{
	"reveille_gateway_access_log_dropped_total":           "lines of the access log that were not written",
	"reveille_gateway_answers_total":                      "answers by route and status",
	"reveille_gateway_answers_broken_total":               "answers that ended before they were complete",
	"reveille_gateway_body_fields_dropped_total":          "unknown request fields that were not passed on",
	"reveille_gateway_request_seconds":                    "time from the request's head to the end of the answer",
	"reveille_gateway_requests_open":                      "requests being served",
	"reveille_gateway_stream_errors_total":                "streams that ended with an error event",
	"reveille_gateway_swaps_total":                        "loads of the pool that evicted a model, since this gateway started",
	"reveille_gateway_swaps_per_minute":                   "loads of the pool that evicted a model, in the last minute",
	"reveille_gateway_state_refused_total":                "records in Redis that were ignored because their signature or form was wrong",
	"reveille_gateway_hosts_power_off_pending":            "hosts that sleep but whose machine is not known to be off",
	"reveille_gateway_memory_used_bytes":                  "memory that the process uses",
	"reveille_gateway_memory_limit_bytes":                 "limit of the process' memory",
	"reveille_runner_requests_total":                      "requests from gateways",
	"reveille_runner_requests_open":                       "requests being served",
	"reveille_runner_requests_waiting":                    "requests that wait for a free place in their engine",
	"reveille_runner_request_seconds":                     "time from a request's head to the end of the answer",
	"reveille_runner_refused_total":                       "refused requests: auth (bad signature), not_loaded",
	"reveille_runner_broken_total":                        "answers that ended before they were complete",
	"reveille_runner_models_loaded":                       "loaded models",
	"reveille_runner_models_planned_bytes":                "memory counted for loaded models whose engine was measured",
	"reveille_runner_models_measured_bytes":               "most memory that the engines of loaded models have taken, where it was measured",
	"reveille_runner_loads_total":                         "loads of models",
	"reveille_runner_load_failures_total":                 "loads that failed",
	"reveille_runner_evictions_total":                     "models evicted to make room",
	"reveille_runner_clears_total":                        "evictions of all models after a failed load",
	"reveille_runner_state_refused_total":                 "records in Redis that were ignored because their signature or form was wrong",
	"reveille_runner_engine_crashes_total":                "engines that ended by themselves",
	"reveille_runner_engine_restarts_total":               "engines stopped for bad_reply or no_answer",
	"reveille_runner_pull_bytes_total":                    "bytes of weights fetched",
	"reveille_runner_pull_seconds":                        "time of pulls of weights that succeeded",
	"reveille_runner_pull_failures_total":                 "pulls of weights that failed",
	"reveille_runner_weights_bytes":                       "bytes of weights on disk",
	"reveille_runner_conversations_saved_total":           "conversations saved when their model was unloaded",
	"reveille_runner_conversations_restored_total":        "conversations given to an engine that had just loaded",
	"reveille_runner_conversations_restored_tokens_total": "tokens of restored conversations",
	"reveille_runner_conversations_saved_seconds_total":   "engine's seconds that restored conversations save if they go on, as measured when they were saved, less the time to restore them",
	"reveille_runner_conversations_refused_total":         "conversations that were not saved (engine_did_not_save, not_stored: no room or no disk) or were forgotten meanwhile (forgotten), or would take more than a tenth of the time to compute them (not_worth_it), or not restored (damaged, engine_did_not_restore), or restored without use (engine_did_not_reuse), and those that could not be fetched (not_fetched) or put into the bucket (not_in_bucket)",
	"reveille_runner_conversations_fetched_total":         "conversations fetched from other hosts or the bucket",
	"reveille_runner_conversations_bytes":                 "bytes of saved conversations on disk",
	"reveille_runner_embedding_batches_total":             "embedding batches sent to engines",
	"reveille_runner_embedding_sequences_total":           "sequences in embedding batches",
	"reveille_runner_embedding_batch_tokens":              "tokens per embedding batch",
	"reveille_runner_embedding_n_batch_utilisation":       "tokens of an embedding batch over n_batch",
	"reveille_runner_embedding_context_utilisation":       "embedding tokens in flight over the context size",
	"reveille_runner_embedding_pending_tokens":            "embedding tokens that wait",
	"reveille_runner_embedding_in_flight_tokens":          "embedding tokens in engines",
	"reveille_runner_embedding_queue_wait_seconds":        "time a sequence waits for its embedding batch",
	"reveille_runner_embedding_active_batches":            "embedding batches in engines",
	"reveille_runner_embedding_batch_ceiling_tokens":      "most tokens of an embedding batch: n_batch, or what the engine's memory allows; 0 when not loaded",
	"reveille_runner_embedding_oom_retries_total":         "embedding calls made in place of one for which the engine had no memory",
	"reveille_runner_embedding_oom_retry_tokens":          "tokens of embedding calls made in place of one for which the engine had no memory",
	"reveille_runner_embedding_oom_failures_total":        "embedding calls that had no memory and could not be made smaller",
	"reveille_runner_mm_lookups_total":                    "media looked up in the encoder cache",
	"reveille_runner_mm_hits_total":                       "media found in the runner's memory (l1) or in Redis (l2)",
	"reveille_runner_mm_misses_total":                     "media not found in the encoder cache",
	"reveille_runner_mm_stores_total":                     "encoder outputs stored",
	"reveille_runner_mm_refused_total":                    "encoder cache entries that were not used or not stored, because of their form, digest or size",
	"reveille_runner_mm_saved_seconds_total":              "encoder time saved by the cache",
	"reveille_runner_mm_redis_read_bytes_total":           "bytes that the encoder cache read from Redis",
	"reveille_runner_mm_redis_written_bytes_total":        "bytes that the encoder cache wrote to Redis",
	"reveille_runner_mm_redis_errors_total":               "failed calls of Redis by the encoder cache",
	"reveille_runner_mm_l1_bytes":                         "bytes of encoder outputs in the runner's memory",
	"reveille_runner_mm_l1_entries":                       "encoder outputs in the runner's memory",
	"reveille_pool_runners":                               "awake runners in the sums reveille_pool_…",
}
