// Package serve is a runner's HTTP side: signed requests of gateways are admitted by runner/host and relayed to the
// model's engine; operators read the host's view, engine logs and metrics.
//
// A request that no engine saw is refused with status 421 and a reason (infra/rpc), so that the gateway may send it
// elsewhere. Everything else is the engine's answer, or an error that says the engine failed. Inside an event stream
// such an error is the last event, in the form that the engine's route speaks, and the stream ends in order.
package serve
