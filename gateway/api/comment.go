package api

import (
	"strconv"
	"time"
)

// Ping is the comment that keeps a quiet stream alive once its model is loaded.
const Ping = ": ping\n\n"

// LoadingComment is what a waiting stream tells its client. A comment never
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
	dst = appendWord(dst, " model=", c.Model)
	dst = appendWord(dst, " state=", c.State)
	dst = appendWord(dst, " host=", c.Host)
	dst = append(dst, " waited="...)
	dst = strconv.AppendInt(dst, int64(max(c.Waited, 0)/time.Second), 10)
	if c.Position > 0 {
		dst = append(dst, " position="...)
		dst = strconv.AppendInt(dst, int64(c.Position), 10)
	}
	if c.ETA > 0 {
		dst = append(dst, " eta="...)
		dst = strconv.AppendInt(dst, Seconds(c.ETA), 10)
	}
	if c.BytesTotal > 0 {
		dst = append(dst, " bytes_done="...)
		dst = strconv.AppendInt(dst, c.BytesDone, 10)
		dst = append(dst, " bytes_total="...)
		dst = strconv.AppendInt(dst, c.BytesTotal, 10)
	}
	return append(dst, "\n\n"...)
}

// appendWord appends name and value unless value is empty. Blanks and control
// characters become underscores: a line break would end the comment.
func appendWord(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(dst, name...)
	for i := range len(value) {
		c := value[i]
		if c <= ' ' || c == 0x7F {
			c = '_'
		}
		dst = append(dst, c)
	}
	return dst
}
