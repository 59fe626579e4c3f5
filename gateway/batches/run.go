package batches

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/infra/jsonscan"
)

const (
	window     = 16      // lines of a batch that run at the same time
	permitSize = 1 << 20 // a long line counts as one more for each so many bytes

	lookEvery  = time.Second      // how often a batch looks whether it is cancelled
	saveEvery  = 2 * time.Second  // how often it saves its progress
	idleAfter  = 10 * time.Second // how long it may make no progress while other batches wait
	firstPause = 250 * time.Millisecond
	maxPause   = 10 * time.Second // between attempts of a line
	maxTries   = 10               // of a line whose engine or host fails
)

// Causes of the end of a run.
var (
	errStopped  = errors.New("a client has cancelled the batch")
	errWindow   = errors.New("the completion window has ended")
	errKey      = errors.New("the batch's API key is no longer valid")
	errIdle     = errors.New("the batch makes no progress and others wait")
	errComplete = errors.New("all lines have run")
	errNoInput  = errors.New("the input file is gone")
)

// worker runs one batch, which it has locked.
type worker struct {
	*Service
	tenant string
	batch  *stored
	digest [sha256.Size]byte
	out    *outcomes
	saved  time.Time
	left   atomic.Int64  // lines without an outcome
	rate   atomic.Uint64 // lines in a million seconds
}

// run runs a batch until it has ended, unless another gateway does. Its error means that it must be resumed.
func (s *Service) run(ctx context.Context, tenant, id string) error {
	b, _, err := s.load(tenant, id)
	if err != nil || b.ended() {
		return ignoreMissing(err)
	}
	out, err := openOutcomes(s.path(tenant, b.Output), s.path(tenant, b.Failed))
	if err != nil || out == nil {
		return err
	}
	defer out.close()
	b, stop, err := s.load(tenant, id) // as it is since the lock
	if err != nil || b.ended() {
		return ignoreMissing(err)
	}
	w := &worker{Service: s, tenant: tenant, batch: b, out: out}
	if _, err := hex.Decode(w.digest[:], []byte(b.Key)); err != nil {
		return err
	}
	if b.InProgressAt == nil && !stop {
		if done, err := w.validate(); done || err != nil {
			return err
		}
	}
	err = w.cause(stop)
	if err == nil {
		s.mu.Lock()
		full := s.full
		s.mu.Unlock()
		if full {
			s.cfg.Log.Warn("a batch waits until its folder has room", "batch", id)
			return nil
		}
		err = w.runLines(ctx)
	}
	switch {
	case errors.Is(err, errComplete):
		return w.finish(completed)
	case errors.Is(err, errStopped):
		return w.finish(cancelled)
	case errors.Is(err, errKey):
		b.fail("invalid_api_key", "The API key that made this batch is no longer valid.", "", 0)
		return w.finish(failed)
	case errors.Is(err, errNoInput):
		return w.failWithoutInput()
	case errors.Is(err, errWindow):
		if err := w.expireRest(); err != nil && !errors.Is(err, errNoInput) {
			return err
		}
		return w.finish(expired)
	case errors.Is(err, errIdle):
		return w.save()
	}
	return err
}

// validate checks the input. It reports whether the batch has failed.
func (w *worker) validate() (bool, error) {
	w.check.Lock()
	defer w.check.Unlock()
	b := w.batch
	f, err := os.Open(w.path(w.tenant, b.InputFileID))
	if ignoreMissing(err) != nil {
		return false, err
	} else if err != nil {
		return true, w.failWithoutInput()
	}
	defer f.Close()
	if err := b.validate(f); err != nil {
		return false, err
	}
	if b.Errors != nil {
		return true, w.finish(failed)
	}
	if len(b.Models) == 1 {
		b.Model = &b.Models[0].Model
	}
	now := time.Now().Unix()
	b.Status, b.InProgressAt = inProgress, &now
	return false, w.save()
}

func (w *worker) failWithoutInput() error {
	w.batch.fail("input_file_not_found", "The input file was deleted.", "input_file_id", 0)
	return w.finish(failed)
}

// save writes the record with the progress.
func (w *worker) save() error {
	b := w.batch
	b.RequestCounts.Completed, b.RequestCounts.Failed = w.out.lines[toOutput], w.out.lines[toErrors]
	b.Rate = float64(w.rate.Load()) / 1e6
	w.saved = time.Now()
	return w.write(w.tenant, b.ID, b)
}

// finish makes the outcome files files of the key, and ends the batch.
func (w *worker) finish(status string) error {
	b, now := w.batch, time.Now()
	if err := w.out.sync(); err != nil {
		return err
	}
	at := now.Unix()
	switch {
	case status == completed:
		b.FinalizingAt = &at
	case status == cancelled && b.CancellingAt == nil:
		b.CancellingAt = &at
	}
	for i, id := range []string{b.Output, b.Failed} {
		if w.out.lines[i] == 0 {
			if err := ignoreMissing(os.Remove(w.path(w.tenant, id))); err != nil {
				return err
			}
			continue
		}
		if err := w.write(w.tenant, id, w.out.fileOf(i, id, b.ID, now, b.Keep)); err != nil {
			return err
		}
		if i == toOutput {
			b.OutputFileID = &b.Output
		} else {
			b.ErrorFileID = &b.Failed
		}
	}
	b.end(status, now)
	if err := w.save(); err != nil {
		return err
	}
	w.setFinal(b.ID)
	w.cfg.Log.Info("a batch has ended", "batch", b.ID, "status", status, "completed", b.RequestCounts.Completed, "failed", b.RequestCounts.Failed)
	return ignoreMissing(os.Remove(w.path(w.tenant, b.ID+stopMark)))
}

// key returns the batch's API key; it has no scopes once it is withdrawn.
func (w *worker) key() keys.Key { return w.cfg.Key(w.digest) }

// cause returns why the batch must end now, or nil. stop is whether a client has cancelled it.
func (w *worker) cause(stop bool) error {
	switch {
	case stop:
		return errStopped
	case time.Now().Unix() >= w.batch.ExpiresAt:
		return errWindow
	case w.key().Scopes&keys.Infer == 0:
		return errKey
	}
	return nil
}

// watch ends a run, with its cause, when the batch must end, or makes no progress while others wait.
func (w *worker) watch(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	left, since := w.left.Load(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := os.Stat(w.path(w.tenant, w.batch.ID+stopMark))
		if cause := w.cause(err == nil); cause != nil {
			end(cause)
			return
		}
		w.mu.Lock()
		others := w.waiting
		w.mu.Unlock()
		if n := w.left.Load(); n != left {
			left, since = n, time.Now()
		} else if others && time.Since(since) > idleAfter {
			end(errIdle)
			return
		}
	}
}

// task is a line that runs.
type task struct {
	customID string
	permits  int
	done     chan Result // gets one result, or is closed if the run ends first
}

// runLines runs the lines that have no outcome, and returns why it ended.
func (w *worker) runLines(parent context.Context) error {
	ctx, end := context.WithCancelCause(parent)
	watched := make(chan struct{})
	go func() { w.watch(ctx, end); close(watched) }()
	defer func() { end(nil); <-watched }()
	w.left.Store(int64(w.batch.RequestCounts.Total - w.out.position()))
	w.rate.Store(uint64(w.batch.Rate * 1e6))

	queue, permits := make(chan task, window), make(chan struct{}, window)
	var read error
	go func() {
		defer close(queue)
		read = w.eachLine(func(l line) error {
			t := task{customID: string(l.customID), permits: min(window, 1+len(l.body)/permitSize), done: make(chan Result, 1)}
			for range t.permits {
				select {
				case permits <- struct{}{}:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			body := bytes.Clone(l.body)
			queue <- t // it has room for as many as there are permits
			go w.runLine(ctx, t, body)
			return nil
		})
	}()
	err := w.collect(queue, permits)
	if err != nil {
		if errors.Is(err, errEnded) && w.key().Scopes&keys.Infer == 0 {
			err = errKey
		}
		end(err)
		for t := range queue { // what still runs
			if r, ok := <-t.done; ok {
				r.Release()
			}
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	if read == nil { // the queue was closed after it was set
		return errComplete
	}
	return read
}

var errEnded = errors.New("the run has ended")

// collect appends outcomes in the order of the input.
func (w *worker) collect(queue <-chan task, permits <-chan struct{}) error {
	var busy time.Duration
	var finished int
	last := time.Now()
	for t := range queue {
		r, ok := <-t.done
		if !ok {
			return errEnded
		}
		to, name := toErrors, failed
		if r.Status < 300 {
			to, name = toOutput, completed
		}
		err := w.append(to, t.customID, &response{r.Status, r.Request, r.Body}, nil)
		r.Release()
		if err != nil {
			return err
		}
		w.cfg.Count(name, 1)
		for range t.permits {
			<-permits
		}
		w.left.Add(-1)
		now := time.Now()
		busy += min(now.Sub(last), idleAfter)
		last = now
		if finished++; finished >= window {
			w.rate.Store(uint64(1e6 * float64(finished) / busy.Seconds()))
		}
		if now.Sub(w.saved) > saveEvery {
			if err := w.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// append adds an outcome to one of the files.
func (w *worker) append(to int, customID string, r *response, e *outcomeError) error {
	o := outcome{ID: newID("batch_req_", time.Now()), CustomID: customID, Response: r, Error: e}
	text, err := jsonscan.Marshal(o)
	if err != nil { // the response is no JSON
		e := api.InvalidEngineResponse()
		to, o.Response = toErrors, &response{e.Status, r.Request, api.OpenAI.Body(e, r.Request)}
		if text, err = jsonscan.Marshal(o); err != nil {
			return err
		}
	}
	return w.out.add(to, append(text, '\n'))
}

// eachLine calls f for each line without an outcome, in the order of the batch's models.
func (w *worker) eachLine(f func(line) error) error {
	skip := w.out.position()
	for _, m := range w.batch.Models {
		if skip >= m.Lines {
			skip -= m.Lines
			continue
		}
		input, err := os.Open(w.path(w.tenant, w.batch.InputFileID))
		if errors.Is(err, fs.ErrNotExist) {
			return errNoInput
		} else if err != nil {
			return err
		}
		err = eachOf(input, m.Model, func(l line) error {
			if skip > 0 {
				skip--
				return nil
			}
			return f(l)
		})
		_ = input.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func eachOf(input io.Reader, model string, f func(line) error) error {
	in := newLines(input)
	for {
		l, err := in.next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if l.model == model {
			if err := f(l); err != nil {
				return err
			}
		}
	}
}

// expireRest gives all lines without an outcome the error batch_expired.
func (w *worker) expireRest() error {
	n := 0
	err := w.eachLine(func(l line) error { n++; return w.append(toErrors, string(l.customID), nil, &errExpired) })
	w.cfg.Count(expired, n)
	return err
}

// runLine runs a line until it has an outcome.
func (w *worker) runLine(ctx context.Context, t task, body []byte) {
	defer close(t.done)
	for try, pause := 1, firstPause; ctx.Err() == nil; {
		key := w.key()
		if key.Scopes&keys.Infer == 0 {
			return // watch ends the run
		}
		r := w.cfg.Do(ctx, Call{Key: key, Path: w.batch.Endpoint, Body: body, Urgent: w.urgent(time.Now())})
		passes, counts := repeats(r.Err)
		if ctx.Err() != nil && r.Err != nil {
			r.Release()
			return
		}
		if counts {
			try++
		}
		if !passes || try > maxTries {
			t.done <- r
			return
		}
		r.Release()
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, maxPause)
	}
}

// repeats reports whether a line is repeated after an error, and whether that counts as one of its tries: refusals do
// not count, since they say nothing about the line.
func repeats(e *api.Error) (passes, counts bool) {
	switch {
	case e == nil:
		return false, false
	case e.Status == 429 || e.Status == 503 || errors.Is(e, api.LoadTimeout) || errors.Is(e, api.QueueTimeout):
		return true, false
	case e.Status >= 500 && !e.NoRetry:
		return true, true
	}
	return false, false
}

// urgent reports whether what is left of the completion window may not suffice: it is less than twice what the other
// lines take, or less than a quarter of the window if that is unknown.
func (w *worker) urgent(now time.Time) bool {
	end := time.Unix(w.batch.ExpiresAt, 0)
	if rate := float64(w.rate.Load()) / 1e6; rate > 0 {
		return end.Sub(now).Seconds() < 2*float64(w.left.Load())/rate
	}
	return end.Sub(now) < end.Sub(time.Unix(w.batch.CreatedAt, 0))/4
}
