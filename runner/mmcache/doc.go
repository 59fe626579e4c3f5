// Package mmcache stores the outputs of media encoders, so that an unmodified llama-server skips its encoder for every
// image or sound that any host of the pool has already encoded with the same model.
//
// An engine started with an [Attachment]'s environment loads the interposer (interpose/, in C), which asks this
// process over a unix socket (PROTOCOL.md). Entries are stored in two tiers: a [Server]'s memory, which keeps the most
// recently used within [Config.Bytes], and Redis, which all hosts share:
//
//	mm:<pool>:<signature>:<identity>   string, expires   see codec.go; the identity is in hex
//	mm:<pool>:used                     hash, expires     hour since 1970 → bytes written in it, for the quota
//
// Guarantees:
//
//   - An entry is served only for the input it was made from. Its identity is a SHA-256 over pool, tenant, model, the
//     contents of the projector file, the engine's program and its libraries, the engine's arguments, and the medium's
//     kind, size, content and layout ([Namespace.Ident]). The value carries a MAC over the key's name and the floats.
//   - The file contents are those that the engine read at its start. They are hashed during the start, once for each
//     version of a file; if a file changes meanwhile, the engine runs uncached. Replacing a file later affects only the
//     next start.
//   - If `mm_cache` is `key`, tenants share nothing: neither entries nor the wait for an encoding. A token in the
//     engine's request identifies the tenant ([Request]); without one nothing is looked up or stored.
//   - An engine can acquire and store only entries that a look-up of one of its connections returned, in the same
//     layout. Anything else is refused and counted.
//   - A fault is a miss and is counted, but never an error: Redis is down or slow; an entry is modified, truncated, too
//     large, of another shape or from another pool; a runner is frozen or dead; the version of libmtmd is unknown.
//   - Every wait is bounded, see interpose/README.md. Redis is written asynchronously; entries that do not fit in the
//     queue are not written.
//   - A host rarely encodes a medium twice at the same time: other requests wait for the result for up to
//     [Config.EncodeWait]. A session that leads an encoding does not wait, and nobody waits for a partial encoding
//     (encodings.go).
//
// Entries do not name the processor, its driver or system libraries. If the hosts of a pool differ in these, one may
// get floats that another computed and that differ by rounding; `mm_cache: none` excludes a model. A chat that
// llama-server continues from its own prompt cache reaches neither the encoder nor this package and is not counted.
//
// Hashing takes 1.1 ms per MiB of media, nearly all of it SHA-256. A hit of 640 KiB in Redis on the same machine takes
// some 9 ms, where an 896-pixel vision encoder takes 4.3 s of one core.
package mmcache
