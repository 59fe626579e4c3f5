package httpapi

import (
	"strconv"

	"reveille/gateway/api"
	"reveille/gateway/quota"
)

// rateHeaders tells the client what its key has left, as OpenAI does.
func (c *call) rateHeaders() {
	requests, tokens := c.Account.States()
	h := &c.Ctx.Response.Header
	for _, of := range [...]struct {
		quota.State
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
