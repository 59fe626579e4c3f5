package httpapi

import (
	"bytes"
	"strconv"
	"sync"
	"time"

	"reveille/infra/jsonscan"
	"reveille/infra/state"
)

// How much of an answer is kept to find its usage: engines put that into the first or the last object.
const (
	headSize = 512
	tailSize = 4 << 10
)

// recorder keeps the first and last bytes of an answer and the time of its first byte.
type recorder struct {
	first time.Time
	kept  *excerpt // nil before the first byte and after release

	events int64 // of a stream, about
	bytes  int64
}

// excerpt holds both ends of an answer.
type excerpt struct {
	head, tail []byte
	store      [headSize + tailSize]byte
}

var excerpts = sync.Pool{New: func() any { return new(excerpt) }}

// keep records the next bytes. It reports whether they are the first ones.
func (r *recorder) keep(p []byte) (first bool) {
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
	if len(p) > tailSize {
		p = p[len(p)-tailSize:]
	}
	if over := len(k.tail) + len(p) - tailSize; over > 0 {
		k.tail = k.tail[:copy(k.tail, k.tail[over:])]
	}
	k.tail = append(k.tail, p...)
	return first
}

// usage returns what the answer reports. The recorder's memory is free after it.
func (r *recorder) usage() (u usage, ok bool) {
	if r.kept != nil {
		u, ok = readUsage(r.kept.head, r.kept.tail)
	}
	r.release()
	return u, ok
}

// release frees the memory.
func (r *recorder) release() {
	if r.kept != nil {
		excerpts.Put(r.kept)
		r.kept = nil
	}
}

// usage is an engine's usage report for one answer.
type usage struct {
	Input, Output, Cached int64
	PerSecond             float64
}

// readUsage finds usage and timings at the ends of an answer.
func readUsage(head, tail []byte) (u usage, ok bool) {
	u, ok = usageIn(tail)
	if u.Input == 0 && u.Cached == 0 { // embeddings report it first, as do Anthropic's streams for the input
		if first, there := usageIn(head); there {
			u.Input, u.Cached, ok = first.Input, first.Cached, true
			u.Output = max(u.Output, first.Output)
		}
	}
	return u, ok
}

var (
	usageKeys   = []string{"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "prompt_tokens_details"}
	timingsKeys = []string{"cache_n", "prompt_n", "predicted_n", "predicted_per_second"}
	detailKeys  = []string{"cached_tokens"}
)

func usageIn(part []byte) (u usage, ok bool) {
	var us [5]jsonscan.Value
	var ti [4]jsonscan.Value
	var de [1]jsonscan.Value
	hasUsage := lastObject(part, `"usage":`, usageKeys, us[:])
	hasTimings := lastObject(part, `"timings":`, timingsKeys, ti[:])
	if hasUsage {
		u.Input, u.Output = nonNegative(us[0])+nonNegative(us[1]), nonNegative(us[2])+nonNegative(us[3])
		if us[4].Kind == jsonscan.Object && jsonscan.Scan(us[4].Raw, detailKeys, de[:]) == nil {
			u.Cached = nonNegative(de[0])
		}
	}
	if hasTimings {
		if !hasUsage {
			u.Input, u.Output, u.Cached = nonNegative(ti[1])+nonNegative(ti[0]), nonNegative(ti[2]), nonNegative(ti[0])
		}
		if ti[3].Kind == jsonscan.Number {
			u.PerSecond, _ = strconv.ParseFloat(string(ti[3].Raw), 64)
		}
	}
	return u, hasUsage || hasTimings
}

// nonNegative parses a non-negative integer, and returns 0 for anything else.
func nonNegative(v jsonscan.Value) int64 {
	if v.Kind != jsonscan.Number {
		return 0
	}
	n, err := strconv.ParseInt(string(v.Raw), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// lastObject reads members of the object after the last occurrence of key that is followed by an object. It searches
// forwards, which is several times as fast as backwards.
func lastObject(part []byte, key string, names []string, out []jsonscan.Value) bool {
	var last []byte
	for {
		i := bytes.Index(part, []byte(key))
		if i < 0 {
			return last != nil && jsonscan.Scan(last, names, out) == nil
		}
		part = part[i+len(key):]
		if obj := object(bytes.TrimLeft(part, " ")); obj != nil {
			last = obj
		}
	}
}

// object returns the JSON object at the start of b, nil if there is none or it is incomplete. It must not contain texts
// with braces.
func object(b []byte) []byte {
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

// recordAnswer adds the exchange's complete answer to the pool's statistics, and returns it.
func (x *exchange) recordAnswer() state.Answer {
	var a state.Answer
	var u usage
	if u, a.Reported = x.seen.usage(); a.Reported {
		a.Input, a.Output, a.Cached, a.PerSecond = u.Input, u.Output, u.Cached, u.PerSecond
		if !x.seen.first.IsZero() {
			a.FirstToken = x.seen.first.Sub(x.call.Began)
		}
	}
	x.call.s.cfg.Usage.Answered(a)
	return a
}
