// Package httpapi is the gateway's HTTP server: the chain of checks that every request passes, the inference routes in all
// dialects, /upstream, and the page with its sessions. The routes that manage are gateway/manage's.
//
// Order of the chain: request id, route → origin → key → framing, size → body → fields → model name → type → the key's
// limits → gate (scheduling) → runner (relay). A request that fails a step before the gate has not started anything; a
// load goes on without the request that asked for it. Large bodies are refused by their head alone where the first
// steps would refuse them (limits.go).
//
// fasthttp imposes these rules on the package:
//   - A RequestCtx and everything it returns (header values, body, path) belongs to the request and is invalid after
//     its response was written. The connection's goroutine reads and closes the body stream set on the response before
//     that, so a stream may use the request's bytes, but nothing may outlive it.
//   - RequestCtx.Done closes when the server shuts down, never when a client leaves. relay.Watcher notices clients that
//     leave.
//   - A body's memory stays with the connection unless it is taken away. request.dropBody does that as soon as no
//     attempt can need it any more.
//   - The end of a stream, not the handler's return, releases what a streamed response holds (the runner's slot,
//     counters, the watch).
package httpapi
