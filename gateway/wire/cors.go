package wire

import (
	"slices"
	"strings"
)

// CORS answers for the origins a deployment allows. The zero value allows
// none; "*" in the list allows all.
type CORS struct {
	any     bool
	origins []string
}

// NewCORS returns the rules for a list of origins such as
// "https://chat.example.org", compared without case.
func NewCORS(origins []string) CORS {
	return CORS{any: slices.Contains(origins, "*"), origins: slices.Clone(origins)}
}

// allow returns the value of Access-Control-Allow-Origin for an origin.
func (c CORS) allow(origin string) (value string, ok bool) {
	if c.any {
		return "*", true
	}
	for _, o := range c.origins {
		if strings.EqualFold(o, origin) {
			return origin, true
		}
	}
	return "", false
}

// Answer returns the headers of an ordinary answer. A request without an
// origin does not come from a web page and is always let through; e is the
// refusal of a page that is not allowed here.
func (c CORS) Answer(origin string) (headers []Header, e *Error) {
	if origin == "" && !c.any {
		return []Header{{"Vary", "Origin"}}, nil
	}
	value, ok := c.allow(origin)
	if !ok {
		e = New(OriginNotAllowed, "Pages of this origin may not use this server.")
		e.Headers = []Header{{"Vary", "Origin"}}
		return nil, e
	}
	headers = []Header{{"Access-Control-Allow-Origin", value}, {"Access-Control-Expose-Headers", exposed}}
	if !c.any {
		headers = append(headers, Header{"Vary", "Origin"})
	}
	return headers, nil
}

// Preflight returns the headers of the 204 that answers OPTIONS, or the
// refusal. asked is the request's Access-Control-Request-Headers.
func (c CORS) Preflight(origin, asked string) (headers []Header, e *Error) {
	if headers, e = c.Answer(origin); e != nil {
		return nil, e
	}
	return append(headers,
		Header{"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
		Header{"Access-Control-Allow-Headers", askedHeaders(asked)},
		Header{"Access-Control-Max-Age", "7200"}), nil
}

// askedHeaders echoes a list of header names. What is no such list is answered
// with the names clients of these dialects use.
func askedHeaders(asked string) string {
	const usual = "Authorization, Content-Type, x-api-key, x-request-id, x-cold-wait, x-wait-timeout"
	if asked == "" || len(asked) > 4096 {
		return usual
	}
	for i := range len(asked) {
		c := asked[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && !('0' <= c && c <= '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~, ", rune(c)) {
			return usual
		}
	}
	return asked
}
