// Package quota is the account of one API key at one gateway: how many requests and tokens the key may use per unit of
// time, how many requests it may have open, how many of them may wait for a model, and how many loads they may start.
//
// The gateways of a [Pool] divide the limits: each enforces an equal part by itself, so that no request waits for
// Redis. A budget of tokens is one count in Redis, to which gateways add in the background what was used. Requests that
// wait for a model are counted by each gateway alone.
package quota

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits are the limits of a key. A zero field means no limit.
type Limits struct {
	Requests Rate  // inference requests
	Tokens   Rate  // tokens of prompts and responses, as engines report them
	Loads    Rate  // loads that its requests start
	Budget   int64 // tokens of prompts and responses in all
	Open     int   // concurrent requests
	Waiting  int   // concurrent requests that wait for a model to be loaded, at each gateway
}

// maxBudget is safely below 2^53, up to which scripts in Redis count exactly.
const maxBudget = 1e15

// Rate is a bucket of N that refills evenly over Per. The zero value means no limit.
type Rate struct {
	N   int
	Per time.Duration
}

// String returns the form that [parseRate] reads, or "" for no limit.
func (r Rate) String() string {
	for name, per := range units {
		if r.N > 0 && r.Per == per {
			return strconv.Itoa(r.N) + "/" + name
		}
	}
	return ""
}

var units = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// parseRate parses N/s, N/m or N/h with N at least 1.
func parseRate(s string) (Rate, error) {
	n, unit, _ := strings.Cut(s, "/")
	r := Rate{Per: units[unit]}
	var err error
	if r.N, err = parseCount(n); err != nil || r.Per == 0 {
		return Rate{}, errors.New("want a number of at least 1 and /s, /m or /h")
	}
	return r, nil
}

func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 {
		return 0, errors.New("want a number of at least 1")
	}
	return int(n), nil
}

// Set parses one limit, such as requests=60/m, tokens=100000/m, loads=20/h, budget=5000000, open=8 or waiting=100.
// Errors do not quote it. The one for an unknown name also lists what package keys reads before it calls Set.
func (l *Limits) Set(word string) (err error) {
	name, value, _ := strings.Cut(word, "=")
	switch name {
	case "requests":
		l.Requests, err = parseRate(value)
	case "tokens":
		l.Tokens, err = parseRate(value)
	case "loads":
		l.Loads, err = parseRate(value)
	case "budget":
		if l.Budget, err = strconv.ParseInt(value, 10, 64); err != nil || l.Budget < 1 || l.Budget > maxBudget {
			err = fmt.Errorf("want a number from 1 to %d", int64(maxBudget))
		}
	case "open":
		l.Open, err = parseCount(value)
	case "waiting":
		l.Waiting, err = parseCount(value)
	default:
		return errors.New("unknown setting: want requests=N/m, tokens=N/m, loads=N/h, budget=N, open=N, waiting=N, priority=high, models=NAMES or expires=DATE")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
