package api

import (
	"fmt"
	"strings"
	"time"
)

// Ping is the comment that keeps a quiet stream alive once its model is loaded.
const Ping = ": ping\n\n"

// LoadingComment is what a waiting stream sends its client. A comment never
// reaches the message a client shows, so it may say anything but must not be
// empty.
type LoadingComment struct {
	Model    string        // canonical id
	State    string        // see the states of a model; "" when unknown
	Host     string        // "" when not chosen yet
	Waited   time.Duration // since the request arrived; whole seconds are shown
	Position int           // place in the queue, 1 is next; 0 when unknown
	ETA      time.Duration // estimate, rounded up to seconds; 0 when unknown

	BytesDone, BytesTotal int64 // of the weights; shown when the total is known
}

// Seconds is an estimate as clients see it: whole seconds, rounded up.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Append appends the comment, as an event stream's bytes, to dst.
func (c LoadingComment) Append(dst []byte) []byte {
	dst = append(dst, ": loading"...)
	word := func(name, value string) {
		if value != "" { // a line break would end the comment
			dst = fmt.Appendf(dst, " %s=%s", name, strings.Map(func(r rune) rune {
				if r <= ' ' || r == 0x7F {
					return '_'
				}
				return r
			}, value))
		}
	}
	word("model", c.Model)
	word("state", c.State)
	word("host", c.Host)
	dst = fmt.Appendf(dst, " waited=%d", max(c.Waited, 0)/time.Second)
	if c.Position > 0 {
		dst = fmt.Appendf(dst, " position=%d", c.Position)
	}
	if c.ETA > 0 {
		dst = fmt.Appendf(dst, " eta=%d", Seconds(c.ETA))
	}
	if c.BytesTotal > 0 {
		dst = fmt.Appendf(dst, " bytes_done=%d bytes_total=%d", c.BytesDone, c.BytesTotal)
	}
	return append(dst, "\n\n"...)
}
