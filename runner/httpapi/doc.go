// Package httpapi is a runner's HTTP server. It relays signed requests of gateways, which runner/host admits, to the
// model's engine, and serves the host's state, engine logs and metrics to operators.
//
// A request goes through [Server.infer]: [Server.authorize] verifies its signature, activeRequest.acquireEngine admits it
// to the model ([host.Host.AcquireModel]), awaitCapacity waits for a permit and prepares a slot
// ([conversations.Turn.PrepareSlot]), sendToEngine sends it ([relay.Client.Start]), checkResponse looks at the head, and
// complete ends the counts when the body was relayed. A [localRequest] takes the same steps for the gateway in this
// process. Embeddings go to the model's batcher instead.
//
// A request that no engine saw is refused with status 421 and a reason (infra/rpc), so that the gateway can send it
// elsewhere; one whose body is no good, or that got no permit or slot in time, has an error. Everything else is the
// engine's response, or an error that reports the engine's failure. Inside an event stream such an error is the last
// event, and the stream ends properly.
//
// The first byte of a stream has a timeout, --first-byte, that grows with the prompt. A response that is not streamed
// has five times that timeout. A watchdog unloads an engine after three responses in a minute that are not HTTP. It
// kills an engine that missed a timeout and does not respond to a minimal request either, and a llama-server whose main
// loop is stuck.
package httpapi
