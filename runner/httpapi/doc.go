// Package httpapi is a runner's HTTP side: signed requests of gateways are admitted by runner/host and relayed to the
// model's engine; operators read the host's view, engine logs and metrics.
//
// A request that no engine saw is refused with status 421 and a reason (infra/rpc), so that the gateway may send it
// elsewhere. Everything else is the engine's answer, or an error that says the engine failed. Inside an event stream
// such an error is the last event, in the format of the engine's route, and the stream ends properly.
//
// Engines are not trusted. A route's answer must be JSON, or events that hold JSON, of the right content type, or it is
// a bad reply (form.go). Answers of up to a megabyte are checked before any part of them is passed on; longer ones are
// cut where they go wrong. The first byte of a stream has a limit, --first-byte, that grows with the prompt; an answer
// in one piece has five times that. A watchdog restarts an engine after three bad replies in a minute. It ends one that
// has missed a limit and does not answer a minimal request either; its health path proves nothing. Gateways request a
// check of an engine that may hang in a constrained request (check.go).
package httpapi
