package api

import "net/textproto"

// The headers of an answer that are ours, and those we read.
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

// Names of headers that every answer of a model has, as they are sent: setting them changes no letters.
var (
	SentRequestID    = sentAs(HeaderRequestID)
	SentRequestIDAlt = sentAs(HeaderRequestIDAlt)
	SentModel        = sentAs(HeaderModel)
	SentModelState   = sentAs(HeaderModelState)
	SentHost         = sentAs(HeaderHost)
	SentQueueMS      = sentAs(HeaderQueueMS)
	SentLoadMS       = sentAs(HeaderLoadMS)
	SentServerTiming = sentAs(HeaderServerTiming)
)

func sentAs(name string) []byte { return []byte(textproto.CanonicalMIMEHeaderKey(name)) }

// exposed is what Access-Control-Expose-Headers lists: all of ours.
const exposed = HeaderRequestID + ", " + HeaderRequestIDAlt + ", " + HeaderRetryAfter + ", " + HeaderRetryAfterMS + ", " +
	HeaderShouldRetry + ", " + HeaderModel + ", " + HeaderModelState + ", " + HeaderColdStart + ", " + HeaderQueueMS + ", " +
	HeaderLoadMS + ", " + HeaderQueueLength + ", " + HeaderEvicted + ", " + HeaderHost + ", " + HeaderMediaCache + ", " +
	HeaderCacheTokens + ", " + HeaderServerTiming + ", " + HeaderLimitRequests + ", " + HeaderRemainingRequests + ", " + HeaderResetRequests + ", " +
	HeaderLimitTokens + ", " + HeaderRemainingTokens + ", " + HeaderResetTokens

// maxRequestID is the longest request id taken over from a client.
const maxRequestID = 128

// RequestID returns the id of a request: the client's own when it has 1 to 128
// characters of A-Z a-z 0-9 . _ : -, else "req_" and 24 random characters.
// fill fills a slice with random bytes.
func RequestID(client string, fill func([]byte)) string {
	if validRequestID(client) {
		return client
	}
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	var id [4 + 24]byte
	random := id[copy(id[:], "req_"):]
	fill(random)
	for i, b := range random {
		random[i] = alphabet[b&31]
	}
	return string(id[:])
}

func validRequestID(s string) bool {
	if s == "" || len(s) > maxRequestID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}
