// Package ollama translates between Ollama's API (docs/api.md of its repository) and OpenAI's, which is what engines
// speak: requests of /api/chat, /api/generate, /api/embed and /api/embeddings one way, responses and streams the other.
// It does no I/O.
//
// What has no counterpart is refused where leaving it out would change the response (template, suffix), and passed over
// where it only concerns how Ollama itself would run the model (num_gpu, num_thread, …), as is context, which no
// response of ours holds. Options are taken from a list, so that none reaches into an engine that others share.
package ollama
