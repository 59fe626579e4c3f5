// Package httpapi is the gateway's HTTP side: the chain of checks that every request passes, the inference routes, and the
// management, listing and operator routes.
//
// Order of the chain, each step in one place: request id → origin → key → route → framing, size → body → fields → model
// name → type → gate (scheduling) → runner (relay). A request that fails a step has started nothing.
//
// The rules of fasthttp that this package lives under:
//   - a RequestCtx and everything it hands out (header values, body, path) belongs to the request and is void after its
//     answer was written; the body stream set on the response is read and closed by the connection's goroutine before
//     that, so a stream may use the request's bytes but nothing else may outlive it.
//   - RequestCtx.Done closes when the server shuts down, never when a client leaves: departures are noticed by
//     relay.Watcher.
//   - a body's memory stays with the connection unless it is taken away: request.dropBody does, as soon as no try is left
//     that could need it.
//   - what a streamed answer holds (the runner's slot, counters, the watch) is released by the stream's end, not by the
//     handler's return.
package httpapi
