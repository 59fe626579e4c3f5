// Package mmcache stores the outputs of media encoders, so that an unmodified llama-server skips its encoder for every
// picture or sound that any host of the pool has already encoded with the same model.
//
// An engine started with an [Attachment]'s environment loads the interposer (interpose/, in C), which asks this process
// over a unix socket (PROTOCOL.md). Entries are stored in two tiers: a [Server]'s memory, which keeps the most recently
// used within [Config.Bytes], and Redis, which all hosts share:
//
//	mm:<signature>:<key>   hash, expires   field: SHA-256 in hex → value, see codec.go
//	mm:used                hash, expires   hour since 1970 → bytes written in it, for the quota
//
// The cache counts its work in the host's metrics, in the pool's statistics for each model ([Config.Count]), and for a
// single request if that is possible ([Attachment.Begin]).
//
// Guarantees:
//
//   - An entry is served only for the input it was made from. The 64-bit key only finds a hash. The field is a SHA-256 over
//     pool, tenant, model, the contents of the projector file, the engine's program and its libraries, the engine's
//     arguments, and the medium's kind, size, content and layout ([Namespace.Ident]). The value carries a MAC over key, field
//     and floats. Media whose keys collide get two fields, and both stay.
//   - The file contents are those that the engine read at its start. They are hashed during the start, once for each state
//     of a file; if a file changes meanwhile, the engine runs uncached. Replacing a file later affects only the next start.
//   - If the model's scope is key, tenants share nothing: neither entries nor the wait for an encode. A token in the engine's
//     request identifies the tenant ([Request]); without one nothing is looked up or stored.
//   - A fault is a miss and is counted, but never an error: Redis is down or slow; an entry is modified, cut, too large, of
//     another shape or from another pool; a runner is frozen or dead; a libmtmd is unknown.
//   - Every wait is bounded, see interpose/README.md. Redis is written asynchronously; what does not fit in the queue is
//     not written.
//   - A host encodes a medium only once at a time; others wait for the result (encodings.go).
//
// Not guaranteed: entries do not name the processor, its driver or system libraries. If the hosts of a pool differ in
// these, one may get floats that another computed and that differ by rounding; `mm_cache: none` excludes a model. The
// quota counts bytes when they are written and not when they expire, so its sum is an upper bound; other hosts' writes
// within two seconds may exceed it. A chat that llama-server continues from its own prompt cache reaches neither the
// encoder nor this package and is not counted.
//
// # Packing
//
// The floats of an 896-pixel tower with random weights, 640 KiB (BenchmarkPacking). This and all following figures are
// from 2 cores of an Intel Xeon; these are the medians of four runs on an idle machine:
//
//	              ratio   in MB/s   out MB/s
//	zstd           1.00      1420       2890
//	byte planes    1.155      249        581
//	planes, -3     1.181      119        386
//	f16            2.00       490       4610   not the same floats
//
// Byte planes are used: they save 13 % of Redis memory for 3 ms, where an encode takes seconds. Half floats would save
// half but change answers, and the promise is the same tokens. Trained towers have less evenly spread exponents than
// random ones, so planes can only do better there.
//
// # Cost
//
// As an engine sees it, with 2.3 MiB of pixels in and 640 KiB of floats out (BenchmarkLookup) and Redis on the same
// machine. Hashing takes 1.1 ms per MiB of input, nearly all of it SHA-256 (BenchmarkHash):
//
//	nothing found   4.3 ms
//	hit in memory   4.9 ms
//	hit in Redis    9.3 ms
//
// The encoder of that tower takes 4.3 to 4.6 s of one core here (0.6 s at 448 px), as measured by the engine: a hit in
// Redis costs 0.2 % of that. A faster processor took 0.91 to 0.95 s with both cores, and 8.6 ms for the hit: 0.9 %.
//
// Time to the first token of a chat with one picture (BenchmarkFirstToken: real engine with one thread, gemma 270M).
// What remains on a hit is the language model reading the prompt:
//
//	          uncached     miss   memory    Redis
//	448 px      1.42 s   1.23 s   0.72 s   0.79 s
//	896 px      6.25 s   6.95 s   2.35 s   2.24 s
//
// # Other engines
//
// Engines that accept ready-made embeddings in the request (vllm with --enable-mm-embeds: content parts image_embeds)
// have recipes without encoder_cache, and nothing of theirs is cached. [Namespace.Ident], [Codec] and the tiers would serve
// them unchanged. What is missing:
//
//   - An encoder outside the engine: a process of the runner that holds the model's vision tower and computes the
//     embeddings, which the engine's own encoder never returns.
//   - A step in the runner's relay that decodes the media of a request, looks them up, has the rest encoded and puts
//     embeddings in their place: a serialized tensor in base64, and for some models additional data (the patch grid of
//     Qwen2-VL, the slice sizes of MiniCPM-V).
//   - Preprocessing in the identity: that encoder does the resizing, so its version and options belong in [Namespace.Encoder].
//   - Trust: vllm warns that an embedding of a wrong shape may crash it. The gateway would have to refuse such parts from
//     clients, and shapes would have to be checked against the model's before they are passed on.
//
// # Tests
//
// The tests run stock llama-servers with vision and audio, real Redis, and a mock engine under sanitizers, and take a
// minute. With MMCACHE_LONG_TESTS set, they also compare the 896-pixel tower. TestMedia of testenv/system covers the
// same through a gateway and two runners.
package mmcache
