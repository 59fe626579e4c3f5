// Package httpapi is a runner's HTTP side: signed requests of gateways are admitted by runner/host and relayed to the
// model's engine; operators read the host's view, engine logs and metrics.
//
// A request that no engine saw is refused with status 421 and a reason (infra/rpc), so that the gateway may send it
// elsewhere. Everything else is the engine's answer, or an error that says the engine failed. Inside an event stream
// such an error is the last event, in the form that the engine's route speaks, and the stream ends in order.
//
// Engines are not believed. What a route must answer with is JSON, or events that hold JSON, of the right content type, or
// it is a bad reply (form.go): answers of up to a megabyte are looked at before any of them goes on, longer ones are cut
// where they go wrong. The first byte of a stream has a limit, --first-byte, that grows with the prompt; an answer in one
// piece has five times that. A watchdog restarts an engine after three bad replies in a minute, and ends one that, having
// missed a limit, does not answer the least request either; its health path proves nothing. Gateways have an engine checked
// that may hang in a constrained request (check.go).
package httpapi
