package quota

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
)

// SetHeaders reports to the client what its key has left, as OpenAI does.
func (a *Account) SetHeaders(h *fasthttp.ResponseHeader) {
	requests, tokens := a.States()
	for _, of := range [...]struct {
		State
		limit, remaining, reset string
	}{
		{requests, api.HeaderLimitRequests, api.HeaderRemainingRequests, api.HeaderResetRequests},
		{tokens, api.HeaderLimitTokens, api.HeaderRemainingTokens, api.HeaderResetTokens},
	} {
		if of.Limit > 0 {
			h.Set(of.limit, strconv.Itoa(of.Limit))
			h.Set(of.remaining, strconv.Itoa(of.Remaining))
			h.Set(of.reset, of.Reset.String())
		}
	}
}
