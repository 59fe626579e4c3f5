package batches

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"reveille/infra/filelock"
)

// outcomes are the two files of a batch's outcomes, which this process has locked.
type outcomes struct {
	files [2]*os.File // of successes and others
	sizes [2]int64
	lines [2]int
	last  int // index of the file last written
}

const (
	toOutput = 0
	toErrors = 1
)

// openOutcomes locks the two files and cuts off what a kill left of a last line. It returns nil if another process has
// the locks.
func openOutcomes(output, failed string) (o *outcomes, err error) {
	o = &outcomes{}
	locked := false
	defer func() {
		if err != nil || !locked {
			o.close()
			o = nil
		}
	}()
	for i, path := range []string{output, failed} {
		if o.files[i], err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
			return o, err
		}
		if locked, err = filelock.Try(o.files[i]); err != nil || !locked {
			return o, err
		}
		if o.lines[i], o.sizes[i], err = countLines(o.files[i]); err != nil {
			return o, err
		}
		if err = o.files[i].Truncate(o.sizes[i]); err != nil {
			return o, err
		}
	}
	return o, o.sync() // what a process before has written counts as done, so it must survive a crash of the machine
}

// countLines returns the number of complete lines and their bytes.
func countLines(f *os.File) (lines int, size int64, err error) {
	buf := make([]byte, 256<<10)
	for at := int64(0); ; {
		n, err := f.ReadAt(buf, at)
		lines += bytes.Count(buf[:n], []byte("\n"))
		if end := bytes.LastIndexByte(buf[:n], '\n'); end >= 0 {
			size = at + int64(end) + 1
		}
		if at += int64(n); err == io.EOF {
			return lines, size, nil
		} else if err != nil {
			return 0, 0, err
		}
	}
}

// position returns how many lines have an outcome.
func (o *outcomes) position() int { return o.lines[toOutput] + o.lines[toErrors] }

// add appends a line to one of the files. A file is flushed to the disk before the other one is written, so that after a
// crash of the machine, too, the outcomes are those of the first lines of the input. If isFull(err), the outcome can be
// added later.
func (o *outcomes) add(to int, text []byte) error {
	if o.last != to {
		if err := o.files[o.last].Sync(); err != nil {
			return fmt.Errorf("flush outcomes: %v", err) // not to be repeated, even if the disk is full: some may be lost
		}
		o.last = to
	}
	if n, err := o.files[to].Write(text); err != nil {
		if n > 0 {
			if cut := o.files[to].Truncate(o.sizes[to]); cut != nil {
				return cut
			}
		}
		return err
	}
	o.sizes[to] += int64(len(text))
	o.lines[to]++
	return nil
}

func (o *outcomes) sync() error { return errors.Join(o.files[0].Sync(), o.files[1].Sync()) }

// close ends the locks.
func (o *outcomes) close() {
	for _, f := range o.files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// outcome is a line of an outcome file.
type outcome struct {
	ID       string        `json:"id"`
	CustomID string        `json:"custom_id"`
	Response *response     `json:"response"`
	Error    *outcomeError `json:"error"`
}

type response struct {
	Status  int             `json:"status_code"`
	Request string          `json:"request_id"`
	Body    json.RawMessage `json:"body"`
}

type outcomeError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

var (
	errExpired   = outcomeError{"batch_expired", "This request could not be executed before the completion window expired."}
	errCancelled = outcomeError{"batch_cancelled", "The batch was cancelled before this request was executed."} // of message batches
)
