package batch

import (
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// pieceSize is how many bytes of an answer are buffered before they are written.
const pieceSize = 32 << 10

// job is one request being served. Batcher.mu guards it from enter until done.
type job struct {
	parsed
	id      uint64
	entered time.Time
	runs    int // runs that sent sequences of it
	request Request
	counts  []int
	results [][]byte // parts of answers, unparsed
	left    int      // number of missing results
	answers []*answer
	whole   []byte // the engine's answer to a verbatim body, used unchanged as the result
	err     error
	piece   []byte        // buffer of write
	raw     []byte        // buffer of write
	done    chan struct{} // capacity 1: holds a value once the job has ended
}

// answer is an engine's answer; jobs hold parts of it.
type answer struct {
	body []byte
	refs atomic.Int32 // one per job, and one for the run while it reads it
}

// size makes room for n sequences.
func (j *job) size(n int) {
	j.counts = slices.Grow(j.counts[:0], n)[:n]
	j.results = slices.Grow(j.results[:0], n)[:n]
	clear(j.results)
	j.left = n
}

// reset clears everything but keeps the buffers.
func (j *job) reset() {
	clear(j.inputs)
	clear(j.results)
	clear(j.answers)
	*j = job{
		parsed: parsed{inputs: j.inputs[:0]}, counts: j.counts[:0], results: j.results[:0], answers: j.answers[:0],
		piece: j.piece[:0], raw: j.raw[:0], done: j.done,
	}
}

// keep records that the results hold a part of a.
func (j *job) keep(a *answer) {
	if !slices.Contains(j.answers, a) {
		a.refs.Add(1)
		j.answers = append(j.answers, a)
	}
}

// recode converts results to base64 if the engine wrote numbers although base64 was requested.
func (j *job) recode() {
	for i, e := range j.results {
		if e[0] != '"' {
			j.results[i] = appendBase64(nil, e)
		}
	}
}

// write writes the body of the answer.
func (j *job) write(w io.Writer) error {
	if j.whole != nil {
		_, err := w.Write(j.whole)
		return err
	}
	if j.base64 {
		j.recode()
	}
	total := 0
	b := append(j.piece[:0], `{"object":"list","data":[`...)
	for i, e := range j.results {
		total += j.counts[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"object":"embedding","index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"embedding":`...)
		if e[0] == '"' && !j.base64 {
			j.raw, _ = appendRaw(j.raw[:0], e) // cannot fail: deliver has already decoded it
			b = appendNumbers(b, j.raw)
		} else {
			b = append(b, e...)
		}
		if b = append(b, '}'); len(b) >= pieceSize {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	b = append(b, ']')
	if j.model != nil {
		b = append(append(b, `,"model":`...), j.model...)
	}
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(total), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(total), 10)
	j.piece = append(b, "}}"...)
	_, err := w.Write(j.piece)
	return err
}
