package httpapi

import (
	"bytes"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"reveille/gateway/keys"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
	"reveille/infra/state"
)

// headSize is how many of a response's first bytes are kept, besides its last ones, to find its usage: engines put that
// into the first or the last object.
const headSize = 512

// recorder keeps the first and last bytes of a response and the time of its first byte.
type recorder struct {
	first time.Time
	kept  *excerpt // nil before the first byte and after release

	events int64 // of a stream, about
	bytes  int64
}

// excerpt holds both ends of a response.
type excerpt struct {
	head, tail []byte
	store      [headSize + 2*relay.TailSize]byte
}

var excerpts = sync.Pool{New: func() any { return new(excerpt) }}

// record records the next bytes. It reports whether they are the first ones.
func (r *recorder) record(p []byte) (first bool) {
	if first = r.first.IsZero(); first {
		r.first = time.Now()
	}
	r.bytes += int64(len(p))
	r.events += int64(bytes.Count(p, eventEnd))
	if r.kept == nil {
		r.kept = excerpts.Get().(*excerpt)
		r.kept.head, r.kept.tail = r.kept.store[:0:headSize], r.kept.store[headSize:headSize]
	}
	k := r.kept
	k.head = append(k.head, p[:min(len(p), headSize-len(k.head))]...)
	k.tail = relay.AppendTail(k.tail, p)
	return first
}

// sawLastEvent reports whether the last event of a chat has come.
func (r *recorder) sawLastEvent() bool {
	if r.kept == nil {
		return false
	}
	return lastEvent.Match(r.kept.tail)
}

var lastEvent = regexp.MustCompile(`(?:^|\n)data: ?(?:\[DONE\]|\{"type": ?"message_stop"\})\r?\n\s*$`)

// release frees the memory.
func (r *recorder) release() {
	if r.kept != nil {
		excerpts.Put(r.kept)
		r.kept = nil
	}
}

// readUsage finds usage and timings at the ends of a response.
func readUsage(head, tail []byte) state.ResponseUsage {
	u := usageReports(tail)
	if u.Input == 0 && u.Cached == 0 { // embeddings report it first, as do Anthropic's streams for the input
		if first := usageReports(head); first.Reported {
			u.Input, u.Cached, u.Reported = first.Input, first.Cached, true
			u.Output = max(u.Output, first.Output)
		}
	}
	return u
}

var (
	usageKeys   = []string{"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "prompt_tokens_details"}
	timingsKeys = []string{"cache_n", "prompt_n", "predicted_n", "predicted_per_second"}
	detailKeys  = []string{"cached_tokens"}
)

// usageReports reads all reports in a part of a response. Each number is the maximum of all reports: those of a stream
// grow or cover only a part.
func usageReports(part []byte) (u state.ResponseUsage) {
	for obj := range objectsAfter(part, `"usage":`) {
		var v [5]jsonscan.Value
		var cached [1]jsonscan.Value
		if jsonscan.Scan(obj, usageKeys, v[:]) != nil {
			continue
		}
		if v[4].Kind == jsonscan.Object {
			_ = jsonscan.Scan(v[4].Raw, detailKeys, cached[:])
		}
		u.Input, u.Output = max(u.Input, nonNegative(v[0])+nonNegative(v[1])), max(u.Output, nonNegative(v[2])+nonNegative(v[3]))
		u.Cached, u.Reported = max(u.Cached, nonNegative(cached[0])), true
	}
	reported := u.Reported
	for obj := range objectsAfter(part, `"timings":`) {
		var v [4]jsonscan.Value
		if jsonscan.Scan(obj, timingsKeys, v[:]) != nil {
			continue
		}
		if !reported {
			u.Input, u.Output, u.Cached = nonNegative(v[1])+nonNegative(v[0]), nonNegative(v[2]), nonNegative(v[0])
		}
		if v[3].Kind == jsonscan.Number {
			u.PerSecond, _ = strconv.ParseFloat(string(v[3].Raw), 64)
		}
		u.Reported = true
	}
	return u
}

// nonNegative parses a number of tokens, which may be a fraction or a text, and returns 0 for anything else.
func nonNegative(v jsonscan.Value) int64 {
	n, err := strconv.ParseFloat(strings.Trim(string(v.Raw), `"`), 64)
	if err != nil || !(n > 0 && n < 1<<53) {
		return 0
	}
	return int64(n)
}

// objectsAfter yields the objects after each occurrence of key. It searches forwards, which is several times as fast as
// backwards.
func objectsAfter(part []byte, key string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for {
			i := bytes.Index(part, []byte(key))
			if i < 0 {
				return
			}
			part = part[i+len(key):]
			if obj := leadingObject(bytes.TrimLeft(part, " ")); obj != nil && !yield(obj) {
				return
			}
		}
	}
}

// leadingObject returns the JSON object at the start of b, nil if there is none or it is incomplete. It must not
// contain texts with braces.
func leadingObject(b []byte) []byte {
	depth := 0
	for i, c := range b {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		}
		if depth == 0 {
			if i == 0 {
				return nil
			}
			return b[:i+1]
		}
	}
	return nil
}

// countUse adds the exchange to the day's counters of its model and API key.
func (x *exchange) countUse(input, output int64) {
	key := ""
	if c := x.call; c.Account != nil {
		key = keys.ID(c.Key.Digest)
	}
	x.call.s.cfg.Usage.CountUse(x.call.model.ID, key, time.Since(x.call.Began), input, output)
}

// recordUsage adds the exchange's complete response to the pool's statistics, and returns it.
func (x *exchange) recordUsage() state.ResponseUsage {
	var a state.ResponseUsage
	if k := x.recorder.kept; k != nil {
		a = readUsage(k.head, k.tail)
	}
	if a.Reported {
		a.FirstToken = x.recorder.first.Sub(x.call.Began)
	}
	x.call.s.cfg.Usage.CountResponse(a)
	return a
}
