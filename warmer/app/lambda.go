package app

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-lambda-go/lambda"
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

// Handle sweeps once for a schedule event, and writes the metrics of the sweep to Deps.Out, a line of JSON that
// CloudWatch reads from the function's log. An error makes Lambda count the invocation as failed; the next event sweeps
// again.
func (w *Warmer) Handle(ctx context.Context, raw json.RawMessage) (Result, error) {
	var e Event
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &e); err != nil {
			return Result{}, fmt.Errorf("event: %w", err)
		}
	}
	w.deps.Log.Info("schedule event", "id", e.ID, "source", e.Source, "type", e.Type)
	r, err := w.Sweep(ctx)
	if err == nil && w.deps.Out != nil {
		err = r.Metrics(w.deps.Out)
	}
	return Result{Actions: len(r.Actions), Failures: r.Failures()}, err
}

// ServeLambda serves the Lambda Runtime API. It returns when the environment ends.
func (w *Warmer) ServeLambda(ctx context.Context) {
	lambda.StartWithOptions(w.Handle, lambda.WithContext(ctx))
}
