package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Ping is the comment that keeps a quiet stream alive once its model is loaded.
const Ping = ": ping\n\n"

// LoadingProgress is the progress of a wait for a model, as clients see it.
type LoadingProgress struct {
	Model    string        // canonical id
	Stage    string        // of its load, or "loaded"; "" when unknown
	Host     string        // "" when not chosen yet
	Waited   time.Duration // since the request arrived; whole seconds are shown
	Loading  time.Duration // since the load began, 0 before; not shown in streams
	Position int           // in the host's queue, 1 is next; 0 when loading, or not queued yet
	ETA      time.Duration // estimate, rounded up to seconds; 0 when unknown

	BytesDone, BytesTotal int64 // of the weights being pulled; shown when the total is known
}

// Seconds is an estimate as clients see it: whole seconds, rounded up.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// stageTexts say what a model does, by the stage of its load.
var stageTexts = map[string]string{"queued": "waits for its turn to load", "waking": "waits for its host to wake", "pulling": "is being downloaded"}

// AppendReasoning appends the progress as a chunk of a chat completion: a line of the model's reasoning, which clients
// show.
func (c LoadingProgress) AppendReasoning(dst []byte, id string) []byte {
	text := "The model " + c.Model + " " + cmp.Or(stageTexts[c.Stage], "is loading")
	if c.ETA > 0 {
		text += fmt.Sprintf(", about %d s left", Seconds(c.ETA))
	}
	type delta struct {
		Role      string `json:"role"`
		Reasoning string `json:"reasoning_content"`
	}
	type choice struct {
		Index  int     `json:"index"`
		Delta  delta   `json:"delta"`
		Finish *string `json:"finish_reason"`
	}
	chunk, _ := json.Marshal(struct { // texts and numbers always marshal
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Choices []choice `json:"choices"`
	}{id, "chat.completion.chunk", time.Now().Unix(), c.Model, []choice{{Delta: delta{"assistant", text + ".\n"}}}})
	return append(append(append(dst, "data: "...), chunk...), "\n\n"...)
}

// AppendComment appends the progress, as a comment of an event stream, to dst. A comment never reaches the message that
// a client shows.
func (c LoadingProgress) AppendComment(dst []byte) []byte {
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
	word("state", c.Stage)
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
