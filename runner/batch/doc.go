// Package batch queues all embedding requests of a loaded model. It packs waiting requests into engine calls by tokens,
// and gives every request its own response: in order, each sequence exactly once, even after splits, retries and
// disconnects.
//
// # Sizes
//
// All sizes are in tokens as the model sees them, including its special ones.
//
//   - n_batch limits what is packed into one engine call. A larger one means fewer but longer calls.
//   - n_ubatch limits a single sequence. It is at most n_batch; the model's own positions are another limit.
//   - context limits the total in flight. Twice n_batch lets a full batch be sent while another is computed.
//
// # When a call is made
//
// An idle engine is used immediately, and batches grow only by queueing; see [packer]. A request that has a call to
// itself, and no truncated input, is relayed unchanged, and so is the response. A shared call asks for base64, which
// takes a quarter of the bytes and almost no work in the engine. Clients that want numbers get the shortest ones that
// read back as the same float32.
//
// # Token counts
//
// Token counts decide what fits and give each request's usage. With BERT vocabularies, plain ASCII text is counted in
// process ([WordPiece]), which [New] checks against the engine. The engine's /tokenize counts other texts, a few at a
// time for all requests together. Requests that cannot be joined, because of their form or a member other than model,
// input, encoding_format, dimensions, truncate and user, and requests for engines that cannot count, are left to the
// caller (ErrNotBatched).
//
// # Errors
//
//   - 400 context_length_exceeded: an input is longer than the longest sequence. Nothing of the request was sent.
//   - 503 engine_out_of_memory: the engine had no memory for a call, nor for smaller ones down to 64 tokens in at most
//     6 tries. The engine stays in use, and later batches start at the size that worked, see [ceiling].
//   - 502 bad_engine_reply: the engine's response lacks an embedding or contains a value that is not finite.
//   - If an engine refuses a call of several requests with 4xx or 500, each half of them is sent again, and so on, so
//     that only the request at fault is refused, with the engine's response. 401, 403, 408, 429 and statuses that
//     describe the engine, such as 503, are the response to all of them.
//   - When the engine exits, requests that were not sent at all fail with ErrUnsent and can be made elsewhere. Others
//     fail with ErrIncomplete or the error of their call.
//
// # Concurrency
//
// One mutex guards a queue; it is never held during I/O. Each batch is one goroutine, which works on copies of its
// requests, since a request can end before the call that carries it, for example when its client disconnects.
package batch
