// Package relay moves one HTTP/1.1 request to an upstream and its answer back to a fasthttp client connection. Both hops
// use it: gateway to runner, and runner to engine.
//
// A Client sends a Request that is written anew from an allow-list and gives back a Response, which is at once the body
// stream of the client's answer: fasthttp's goroutine for the client reads it, with no pipe and no second goroutine
// between. A Stream does the same for event streams and adds comments while a model loads or an engine is silent. A Call
// ends an exchange from outside, a Watcher notices that a client left, a Listener bounds writes and connections, and
// SmugglingCheck refuses requests with two framings.
//
// What the package holds to:
//   - No byte of a request is sent twice. The only retry is on another connection when an idle one took nothing.
//   - A connection is used again only after a body that ended properly, with nothing behind it.
//   - A body that broke off never looks whole: reading it ends in an error, and fasthttp cuts the client's body.
//   - Where the caller says that a body, or the events of a stream, are JSON, what is not JSON is a broken body.
//   - What the upstream sent is never held back to wait for more, and what came together goes on together.
//   - A connection owns a buffer only while it holds unread bytes; a warm request allocates nothing.
//
// Measured by bench_test.go on 2 cores shared by client, proxy and upstream in one process, and by other work: CPU in µs
// for each request of 1 KB with an answer of 1 KB, or of 64 chunks, all three parts together; the mean of two runs of
// 0.4 s, so differences below a quarter mean nothing.
//
//	                   1 KB, 1/16/128 conns   64 chunks, 1/16/128 conns
//	direct                13 / 13 / 13             294 / 313 / 301
//	fasthttp client       27 / 27 / 28             685 / 601 / 493
//	relay                 28 / 28 / 28             512 / 334 / 325
package relay
