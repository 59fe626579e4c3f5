// Package httpapi is a runner's HTTP side: signed requests of gateways are admitted by runner/host and relayed to the
// model's engine; operators read the host's view, engine logs and metrics.
//
// A request that no engine saw is refused with status 421 and a reason (infra/rpc), so that the gateway may send it
// elsewhere. Everything else is the engine's answer, or an error that says the engine failed. Inside an event stream
// such an error is the last event, in the format of the engine's route, and the stream ends properly.
//
// The first byte of a stream has a limit, --first-byte, that grows with the prompt; an answer in one piece has five times
// that. A watchdog restarts an engine after three answers in a minute that are not HTTP. It kills one that has missed a
// limit and does not answer a minimal request either, and a llama-server whose main loop stands still.
package httpapi
