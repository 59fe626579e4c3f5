// Package rpc is the private protocol between gateways and runners: the names of its headers and the signature that
// every call carries.
//
// A gateway forwards a client's request under the engine's own path, with the model in a header. The runner either
// relays the engine's response or reports an error, or refuses with status 421 and a reason, which states that no engine
// saw the request, so that sending it elsewhere is safe.
//
// A signature is HMAC-SHA256 under the pool's runner secret over the method, the path, the host, the model, the cache
// tenant, the gateway, a counter, the time and the length of the body, so a runner checks it before it reads a byte of
// body. The body's bytes are not covered: their integrity is the transport's (loopback or a private network). Runners
// accept a time within ± 30 s of their own and each counter of a gateway once, remembered in a sliding window as in RFC
// 4303 section 3.4.3, so memory grows with gateways, not with requests. A runner that has just started takes no call
// that was signed before, since its predecessor may have.
//
// The headers of a ticket, a tenant, a stream, a request id and a content type are outside the signature: a forger
// could change only the order of a queue, a limit, a log line, and what a client may say anyway.
package rpc

// Headers of the protocol.
const (
	HeaderAuth        = "X-Reveille-Auth"       // signature, request
	HeaderModel       = "X-Reveille-Model"      // canonical model id, request
	HeaderTicket      = "X-Reveille-Ticket"     // ticket whose reservation the request uses, request, may be absent
	HeaderWaited      = "X-Reveille-Waited"     // how many requests waited for the ticket at the gateway, this one included, request, absent for one
	HeaderPriority    = "X-Priority"            // see ParsePriority, request, may be absent
	HeaderBackground  = "X-Reveille-Background" // set on a request that is no use of the model and that an unload cuts, request, may be absent
	HeaderStream      = "X-Reveille-Stream"     // set on a request whose body asks the engine for a stream, request, may be absent
	HeaderCacheTenant = "X-Reveille-Scope"      // tenant whose encoder cache and conversations the request uses, request, signed, absent where all tenants share them
	HeaderTenant      = "X-Reveille-Tenant"     // tenant of the request's key (Signer.Tenant), for fairness at the engine, request, not signed, absent without keys
	HeaderRequest     = "X-Request-Id"          // for logs, request
	HeaderRefused     = "X-Reveille-Refused"    // Refusal, response: no engine saw the request
	HeaderMedia       = "X-Media-Cache"         // media served from the encoder cache and encoded, response, may be absent
	HeaderCache       = "X-Cache-Tokens"        // tokens of the prompt from a restored conversation, response, may be absent
	HeaderTime        = "X-Reveille-Time"       // runner's clock in ms, response to a call whose time was off
	HeaderCode        = "X-Reveille-Code"       // code of the error table, response: the engine failed
)

// StatusRefused is the status of a refusal (Misdirected Request).
const StatusRefused = 421

// Refusals: why a runner did not pass a request to an engine.
const (
	RefusedNotLoaded = "not_loaded" // the model is not loaded here, or takes no new requests
	RefusedDraining  = "draining"   // the runner is shutting down
	RefusedAuth      = "auth"       // signature, time or counter not accepted
	RefusedSentBack  = "sent_back"  // it waited for its turn at the engine, and a gateway asked for it back (PathSendBack)
	RefusedHost      = "host"       // the call was signed for another host: its address has become this one's
)

// PathHost returns the runner's view of itself as JSON (GET); PathLog the runner's own log as text, PathLogs/<model> an
// engine's; with ?follow=1 they go on, and with &no-history=1 they start with the next line.
// PathSavedConversations lists the saved conversations by model as JSON (GET), or forgets those of ?model, or all, from
// before ?at (DELETE); the response is a [Forgotten]. PathSendBack ends the waits of up to ?n requests for ?model that
// wait for their turn at its engine (POST): they are refused as sent back, and their gateways send them to other
// copies.
const (
	PathHost               = "/runner/host"
	PathLog                = "/runner/log"
	PathLogs               = "/runner/logs/"
	PathSavedConversations = "/runner/conversations"
	PathSendBack           = "/runner/send-back"
	PathHealth             = "/runner/health"
	PathMetrics            = "/metrics"
)

// Forgotten is a runner's response about conversations that it forgot.
type Forgotten struct {
	Conversations int  `json:"forgotten"` // that were saved
	Copies        int  `json:"copies"`    // of models, which are unloaded
	Requests      int  `json:"requests"`  // open ones, which finish first
	Partly        bool `json:"partly"`    // not all that was saved could be removed
}
