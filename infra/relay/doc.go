// Package relay sends one HTTP/1.1 request to an upstream and returns its answer to a fasthttp client connection. Both
// hops use it: gateway to runner, and runner to engine.
//
// A Client sends a Request built from an allow-list of fields and returns a Response, which is also the body stream of
// the client's answer. fasthttp's goroutine for the client reads it, without a pipe or a second goroutine. A Stream
// does the same for event streams, and sends comments while a model loads or an engine is silent. An Intake reads
// bodies of requests, and an Upload sends a long one on while it arrives. A Call ends an exchange from outside, a Watcher
// notices when a client leaves, a Listener bounds writes and connections, and SmugglingCheck refuses requests with two
// framings.
//
// Guarantees:
//   - No byte of a request is sent twice. The only retry is on another connection, when an idle one took nothing.
//   - A connection is reused only after a body that ended properly and was followed by nothing.
//   - A truncated body never looks complete: reading it ends in an error, and fasthttp cuts the client's body.
//   - If the caller says that a body, or the events of a stream, are JSON, anything else is an error.
//   - Bytes from the upstream are never held back to wait for more, and what arrived together is sent together.
//   - A connection holds a buffer only while it has unread bytes; a warm request allocates nothing.
//
// Measured by bench_test.go on 2 cores that also ran other work, with client, proxy and upstream in one process: CPU in
// µs per request of 1 KB, answered by 1 KB or by 64 chunks, for all three parts together. Each figure is the mean of
// two runs of 0.4 s, so differences below a quarter mean nothing.
//
//	                   1 KB, 1/16/128 conns   64 chunks, 1/16/128 conns
//	direct                13 / 13 / 13             294 / 313 / 301
//	fasthttp client       27 / 27 / 28             685 / 601 / 493
//	relay                 28 / 28 / 28             512 / 334 / 325
package relay
