// Command gateway is Reveille's front door, and with `gateway run` the whole of it on one machine.
//
// # A warm request
//
// This is the path of a chat request for a loaded model through the gateway, in order, with the functions that have a step of
// their own. Nothing on it waits for Redis, or decodes of the body more than single strings and the headers of images.
//
//  1. [httpapi.Server.handle] makes the request with its id and finds its route ([httpapi.Server.newRequest],
//     [api.Router.Match]).
//  2. [httpapi.request.runChain] runs the checks, and then the handler in the table of routes: for chats
//     [httpapi.infer]. [relay.SmugglingCheck] finds framing that a proxy could read in another way.
//  3. [httpapi.request.checkHead] checks the origin ([api.Browsers.Check]), then the key and its scope
//     ([httpapi.Server.authorize], [keys.Set.Find]).
//  4. [httpapi.request.readBody] reads the body as it arrives ([relay.BodyReader.Read]).
//  5. [httpapi.request.parse] reads it once: [httpapi.inferenceCall.parseJSON] goes through the members
//     ([jsonscan.Members.Next]), each by the rules of the route ([bodycheck.Check.Member]); [api.Route.Check] looks
//     at those that the gateway needs. An alias with presets parses it again.
//  6. [models.Registry.Resolve] finds the model's entry. A request may be one that does not wait for a load
//     ([httpapi.inferenceCall.markBackground]); if the model is not loaded, another may serve it
//     ([httpapi.inferenceCall.fallbackFor]). [bodycheck.Check.Finish] checks what depends on the model, and
//     [httpapi.inferenceCall.canonicalName] writes its canonical name into the body where the client used another one.
//  7. [httpapi.exchange.serveInference] counts the request against its key ([quota.Account.Begin]) and watches for
//     the client's leaving ([relay.Watcher.Arm]); [httpapi.exchange.respond] looks in the mirror of the pool for a
//     copy of the model ([scheduling.Gate.EndpointFor]).
//  8. [httpapi.exchange.attemptUntilResponse] makes attempts until one has a response. [httpapi.exchange.awaitTurn]
//     takes the copy of step 7. [httpapi.exchange.sendToRunner] has [httpapi.exchange.buildAttempt] count the request
//     at the copy ([scheduling.Endpoint.Begin]) and note the use, signs ([rpc.Signer.Sign]) and sends it over a kept
//     connection ([relay.Client.Start]). For a runner in this process, awaitTurn counts it and has it admitted
//     ([relay.LocalRequest]), and sendToRunner sends it to the engine, unsigned.
//  9. [relay.Response.Await] waits for the head of the response, and [httpapi.exchange.checkResponse] decides what it
//     is.
//  10. [httpapi.exchange.deliverResponse] sets the response: a stream ([httpapi.exchange.sendStream]), or another
//     body. JSON of up to 1 MiB, and what is translated as a whole, is read first
//     ([httpapi.exchange.bufferResponse]). A stream without a response after --commit-after (5 s) is set while step 8
//     or 9 waits, and [httpapi.responseBody.WriteTo] goes on from there.
//  11. [httpapi.responseBody.WriteTo] passes the bytes on ([relay.Response.Next]). The two ends are kept, which hold
//     the usage.
//  12. [httpapi.exchange.completeRequest] ends the counts and records the usage. The server calls it when it
//     has written the last byte of a relayed body, or the client has left ([httpapi.responseBody.Close]).
//
// The runner's steps are in runner/httpapi. Where step 7 finds no copy, the request waits; infra/docs/architecture.md shows the way from there.
// The lines of batches take the same steps from 5 on, without a connection; package batches shows how one flows.
package main
