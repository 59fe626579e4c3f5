// Package mmcache keeps the outputs of media encoders, so that an unmodified llama-server skips its encoder for every
// picture or sound that a host of the pool has seen with the same model.
//
// An engine that is started with an [Attachment]'s environment loads the interposer (interpose/, in C), which asks this
// process over a unix socket (PROTOCOL.md). Entries are kept in two tiers: a [Server]'s memory, the last used within
// [Config.Bytes], and Redis, for all hosts:
//
//	mm:<signature>:<key>   hash, expires   field: SHA-256 in hex → value, see codec.go
//	mm:used                hash, expires   hour since 1970 → bytes written in it, for the quota
//
// What the cache did is counted in metrics for the host, in the pool's statistics for each model ([Config.Count]), and
// for one request where it can be told ([Attachment.Begin]).
//
// What is promised:
//
//   - No entry is served for anything but what it was made from. The 64-bit key only finds a hash; the field is a SHA-256
//     over pool, tenant, model, the contents of the projector file, the engine's program and its libraries, the engine's arguments, and
//     the medium's kind, size, content and layout ([Space.Ident]), and the value carries a MAC over key, field and floats.
//     Media that collide in the key are two fields, and both live.
//   - The contents are those that the engine read at its start: they are hashed beside the start, once for each state of a
//     file, and when a file changed meanwhile the engine runs uncached. A file replaced later matters to the next start.
//   - Tenants share nothing where the model's scope is key: neither entries, nor the wait for an encode. Who asks is told by a
//     token that the engine's request carries ([Request]); without one nothing is looked up or kept.
//   - A fault is a miss and a count, never an error: Redis away or slow, an entry that is changed, cut, too large, of
//     another shape or another pool's; a runner that is frozen or dead; a libmtmd that is unknown.
//   - Every wait has an end, see interpose/README.md. Redis is written behind; what does not fit the queue is not written.
//   - One medium is encoded once at a time on a host: others wait for the result (encodings.go).
//
// What is not: entries do not name the processor, its driver or system libraries. A pool whose hosts differ in these may
// give one host floats that another computed, equal but for rounding; `mm_cache: none` keeps a model out of it. Bytes of the
// quota are counted when written, not when they expire, so that the sum is an upper bound; it may be exceeded by what
// other hosts write within two seconds. A chat that llama-server continues from its own prompt cache reaches neither
// the encoder nor this package, and is in no count.
//
// # Packing
//
// The floats of an 896-pixel tower of random weights, 640 KiB (BenchmarkPacking, 2 cores of an Intel Xeon, as all that
// follows; the medians of four runs on an idle machine):
//
//	              ratio   in MB/s   out MB/s
//	zstd           1.00      1420       2890
//	byte planes    1.155      249        581
//	planes, -3     1.181      119        386
//	f16            2.00       490       4610   not the same floats
//
// Byte planes are kept: 13 % less of Redis for 3 ms of an encode's seconds. Half floats would halve it and
// change answers; the promise is the same tokens, so they are not used. Trained towers have less even exponents than
// random ones, so that planes can only do better there.
//
// # Cost
//
// As an engine sees it, 2.3 MiB of pixels in and 640 KiB of floats out (BenchmarkLookup), with Redis on the same machine;
// hashing is 1.1 ms a MiB of it, nearly all of that SHA-256 (BenchmarkHash):
//
//	nothing found   4.3 ms
//	hit in memory   4.9 ms
//	hit in Redis    9.3 ms
//
// The encoder of that tower takes 4.3 to 4.6 s of one core here (0.6 s at 448 px), as the engine measured it: a hit in Redis
// costs 0.2 % of it. On a faster processor, with both cores, 0.91 to 0.95 s and 8.6 ms were seen: 0.9 %.
//
// Time to the first token of a chat with one picture (BenchmarkFirstToken: real engine with one thread, gemma 270M;
// what is left on a hit is the language model reading the prompt):
//
//	          uncached     miss   memory    Redis
//	448 px      1.42 s   1.23 s   0.72 s   0.79 s
//	896 px      6.25 s   6.95 s   2.35 s   2.24 s
//
// # Other engines
//
// Engines that take ready embeddings inside the request (vllm with --enable-mm-embeds: content parts image_embeds) have a
// recipe without encoder_cache, and nothing of theirs is cached. [Space.Ident], [Codec] and the tiers would serve them as
// they are. What is missing:
//
//   - An encoder apart from the engine, a process of the runner's that holds the model's vision tower and makes the
//     embeddings; the engine's own never hands them out.
//   - A step in the runner's relay that decodes the media of a request, looks them up, has the rest encoded and puts
//     embeddings in their place: a serialized tensor in base64, and for some models more beside it (the patch grid of
//     Qwen2-VL, the slice sizes of MiniCPM-V).
//   - Preprocessing in the identity: resizing happens in that encoder, so its version and options belong to
//     [Space.Encoder].
//   - Trust: vllm warns that an embedding of a wrong shape may crash it. Parts of that kind that a client sends itself
//     would have to be refused in the gateway, and shapes checked against the model's before they are passed.
//
// # Tests
//
// They run stock llama-servers that see and hear, real Redis, and a mock engine under sanitizers, and take a minute. With
// MMCACHE_LONG_TESTS set, the 896-pixel tower is compared as well. TestMedia of testenv/system tells the same story
// through a gateway and two runners.
package mmcache
