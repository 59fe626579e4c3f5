package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"reveille/warmer/sweep"
)

// Event is the part of an EventBridge schedule event that a warmer reads. An empty event sweeps as well.
type Event struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	Type   string `json:"detail-type"`
}

// Result is the result of an invocation.
type Result struct {
	Actions  int `json:"actions"`
	Failures int `json:"failures"`
}

// deadlineMargin is how long before the function's deadline a sweep ends, to release what it holds and to write its
// report.
const deadlineMargin = 10 * time.Second

// errDeadline ends a sweep that the next one continues.
var errDeadline = errors.New("the function's time is over")

// Handle sweeps once for a schedule event, and writes metrics to Deps.Out, in lines of JSON that CloudWatch reads from
// the function's log: the pool's before the sweep acts, its failures at the end. A sweep ends deadlineMargin before the
// function's deadline; what it has not finished, such as the stop of a machine, is no error, and the next event's sweep
// continues it. An error makes Lambda count the invocation as failed.
func (w *Warmer) Handle(ctx context.Context, raw json.RawMessage) (Result, error) {
	var e Event
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &e); err != nil {
			return Result{}, fmt.Errorf("event: %w", err)
		}
	}
	w.deps.Log.Info("schedule event", "id", e.ID, "source", e.Source, "type", e.Type)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, end.Add(-deadlineMargin), errDeadline)
		defer cancel()
	}
	out := w.deps.Out
	if out == nil {
		out = io.Discard
	}
	r, err := w.Sweep(ctx, func(r sweep.Report) {
		if err := r.WriteMetrics(out); err != nil {
			w.deps.Log.Warn("metrics", "error", err)
		}
	})
	if err != nil && errors.Is(context.Cause(ctx), errDeadline) {
		w.deps.Log.Info("the sweep ran out of time, the next one continues", "error", err)
		err = nil
	}
	return Result{Actions: len(r.Actions), Failures: r.Failures()}, errors.Join(err, r.WriteFailures(out))
}

// ServeLambda serves the Lambda Runtime API. It returns when the environment ends.
func (w *Warmer) ServeLambda(ctx context.Context) {
	lambda.StartWithOptions(w.Handle, lambda.WithContext(ctx))
}
