// Package batch is the one queue of a loaded model's embedding requests. It packs what waits into engine calls by tokens,
// and gives every request its own answer: in order, each sequence exactly once, through splits, retries and departures.
//
// # Sizes
//
// All are in tokens as the model sees them, its special ones included.
//
//   - n_batch is how much is packed into one engine call. Larger means fewer calls, and longer ones.
//   - n_ubatch is the largest single sequence. It is no more than n_batch, and the model's own positions bound it too.
//   - context is the sum of what is under way. Twice n_batch lets a full batch be sent while another is computed.
//
// Choose n_batch by how long a call may take: a single text that arrives while one is under way waits for its end. On a
// processor 512 to 2048 is enough, since a call costs little there; on a GPU take what its memory allows, since a call has
// a cost of its own.
//
// # When a call is made
//
// See [Former]. In short: an idle engine is used at once, and batches grow by queueing alone. A request that has the
// engine to itself is passed on and answered byte for byte as it came. A shared call asks for base64, which is a quarter of
// the bytes and next to no work for the engine; who wants numbers gets the shortest that read as the same float32.
//
// # Token counts
//
// They decide what fits, and are each request's usage. For BERT's vocabularies plain ASCII text is counted in process
// ([WordPiece]), which [New] checks against the engine; other text is counted by the engine's /tokenize, and remembered.
// Requests that cannot be joined, for their form or for a member other than model, input, encoding_format, dimensions and
// user, and those for engines that cannot count, are left to the caller (ErrNotBatched).
//
// # Errors
//
//   - 400 context_length_exceeded: an input is longer than the longest sequence. The message has its index and both
//     numbers; nothing of the request was sent. Shorten the input, or raise n_ubatch where the model has the positions.
//   - 503 engine_out_of_memory: the engine had no memory for a call, nor for halves of it down to 64 tokens in at most 4
//     tries. Lower n_batch. The engine stays in use.
//   - 502 bad_engine_reply: the engine's answer lacks an embedding or holds a value that is not finite.
//   - An engine that refuses a call of several requests is asked again for each half of them, and so on, so that only the
//     one at fault is refused, with the engine's own answer: in about 2·log2(n) calls for one of n. That is for 4xx and 500;
//     401, 403, 408, 429 and what else says something of the engine, such as 503, are the answer to all of them.
//   - When the engine ends, requests of which nothing was sent fail with ErrUnsent and can be made elsewhere; others fail
//     with ErrCut, or with what their call failed with.
//
// # Concurrency
//
// One mutex guards a queue; it is never held over I/O. Each batch is one goroutine, which works on copies of its requests:
// a request may end, by a departure for example, before the call that carries it does.
package batch
