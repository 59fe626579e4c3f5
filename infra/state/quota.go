package state

import (
	"context"
	"errors"
	"strconv"
	"time"
)

// QuotaRates is how many rates an API key's account has: requests, tokens and loads, in this order.
const QuotaRates = 3

// A QuotaClaim reports one gateway's use of an account and what it still holds.
type QuotaClaim struct {
	Account string // valid in a key's name
	Idle    bool   // the gateway gives back all that it holds
	Rates   [QuotaRates]struct {
		Limit float64 // per period, 0 for none
		Per   time.Duration
		Held  float64 // by this gateway; negative: it has used more than it held
	}
	Budget    bool  // the account has a budget of tokens
	Spent     int64 // tokens of the budget that were used at this gateway since the answer to claim Booked
	Open      int   // requests that are open at this gateway, or may be before the answer
	OpenLimit int   // in the pool, 0 for none

	// Counter names the account in one life of the gateway, "" if answers need not be remembered. Number is above those of its
	// claims before; Booked is that of the last one whose answer arrived, 0 for none. What the claim says of Held and Spent follows
	// from that answer: what the claims after it were given is added to it, as if their answers had arrived.
	Counter        string
	Number, Booked int64
}

// A QuotaGrant is the answer to a claim.
type QuotaGrant struct {
	Rates [QuotaRates]struct {
		Got  float64 // more than the gateway held; negative: less
		Left float64 // in the pool, besides what gateways hold
	}
	Spent    int64 // tokens of the budget that the pool has used in all
	Open     int   // requests that may be open at this gateway
	Gateways int   // that use the account now
}

// SettleQuota settles a gateway's accounts, and returns a grant for each claim, in the same order, and how many gateways
// the pool has. A gateway counts for ten seconds after its last settlement, or until one with end. Quotas in
// Redis are not signed, so whoever can write there can change them; one settlement can grant at most a full limit.
func (s *Store) SettleQuota(ctx context.Context, gateway string, end bool, claims []QuotaClaim) (grants []QuotaGrant, gateways int, err error) {
	args := make([]any, 0, 2+len(claims)*(8+3*QuotaRates))
	args = append(args, gateway, end)
	for _, c := range claims {
		args = append(args, c.Account, c.Idle, c.OpenLimit, c.Open)
		spent := c.Spent
		if !c.Budget {
			spent = -1
		}
		for _, r := range c.Rates {
			args = append(args, r.Limit, r.Per.Milliseconds(), strconv.FormatFloat(r.Held, 'f', 6, 64))
		}
		args = append(args, spent, c.Counter, c.Number, c.Booked)
	}
	out, err := s.eval(ctx, s.scripts.quota, args...)
	if err != nil {
		return nil, 0, err
	}
	words := toStrings(out)
	if len(words) != 1+len(claims)*(2*QuotaRates+3) {
		return nil, 0, errors.New("state script returned another number of grants")
	}
	grants = make([]QuotaGrant, len(claims))
	next := func() (n float64) {
		n, err = strconv.ParseFloat(words[0], 64)
		words = words[1:]
		return n
	}
	gateways = int(next())
	for i := range grants {
		g := &grants[i]
		for r := range g.Rates {
			g.Rates[r].Got, g.Rates[r].Left = next(), next()
		}
		g.Spent, g.Open, g.Gateways = int64(next()), int(next()), int(next())
	}
	return grants, gateways, err
}
