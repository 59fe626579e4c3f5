package api

import (
	"crypto/rand"
	"net/textproto"
	"regexp"
	"strings"
)

// The headers of a response that are ours, and those we read.
const (
	HeaderRequestID    = "x-request-id"
	HeaderRequestIDAlt = "request-id" // same value, for Anthropic's clients
	HeaderRetryAfter   = "Retry-After"
	HeaderRetryAfterMS = "retry-after-ms"
	HeaderShouldRetry  = "x-should-retry"
	HeaderModel        = "x-model"
	HeaderModelState   = "x-model-state"
	HeaderColdStart    = "x-cold-start"
	HeaderQueueMS      = "x-queue-ms"
	HeaderLoadMS       = "x-load-ms"
	HeaderQueueLength  = "x-queue-length"
	HeaderEvicted      = "x-evicted"
	HeaderHost         = "x-runner"
	HeaderMediaCache   = "x-media-cache"
	HeaderCacheTokens  = "x-cache-tokens"
	HeaderServerTiming = "Server-Timing"

	// What an API key has left, as OpenAI names it.
	HeaderLimitRequests     = "x-ratelimit-limit-requests"
	HeaderRemainingRequests = "x-ratelimit-remaining-requests"
	HeaderResetRequests     = "x-ratelimit-reset-requests"
	HeaderLimitTokens       = "x-ratelimit-limit-tokens"
	HeaderRemainingTokens   = "x-ratelimit-remaining-tokens"
	HeaderResetTokens       = "x-ratelimit-reset-tokens"

	HeaderColdWait    = "x-cold-wait"    // asked: block, fail or fallback
	HeaderWaitTimeout = "x-wait-timeout" // asked: seconds
)

// Names of headers that every response of a model has, as they are sent: setting them changes no letters.
var (
	CanonicalRequestID    = canonical(HeaderRequestID)
	CanonicalRequestIDAlt = canonical(HeaderRequestIDAlt)
	CanonicalModel        = canonical(HeaderModel)
	CanonicalModelState   = canonical(HeaderModelState)
	CanonicalHost         = canonical(HeaderHost)
	CanonicalQueueMS      = canonical(HeaderQueueMS)
	CanonicalLoadMS       = canonical(HeaderLoadMS)
	CanonicalServerTiming = canonical(HeaderServerTiming)
)

func canonical(name string) []byte { return []byte(textproto.CanonicalMIMEHeaderKey(name)) }

// exposed is what Access-Control-Expose-Headers lists: all of ours.
const exposed = HeaderRequestID + ", " + HeaderRequestIDAlt + ", " + HeaderRetryAfter + ", " + HeaderRetryAfterMS + ", " +
	HeaderShouldRetry + ", " + HeaderModel + ", " + HeaderModelState + ", " + HeaderColdStart + ", " + HeaderQueueMS + ", " +
	HeaderLoadMS + ", " + HeaderQueueLength + ", " + HeaderEvicted + ", " + HeaderHost + ", " + HeaderMediaCache + ", " +
	HeaderCacheTokens + ", " + HeaderServerTiming + ", " + HeaderLimitRequests + ", " + HeaderRemainingRequests + ", " + HeaderResetRequests + ", " +
	HeaderLimitTokens + ", " + HeaderRemainingTokens + ", " + HeaderResetTokens

// clientID is an id that a client may give its request.
var clientID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// RequestID returns the id of a request: the client's own when it has 1 to 128
// characters of A-Z a-z 0-9 . _ : -, else "req_" and 26 random characters.
func RequestID(client []byte) string {
	if len(client) > 0 && clientID.Match(client) {
		return string(client)
	}
	return "req_" + strings.ToLower(rand.Text())
}
