package instance

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"reveille/infra/awsquery"
)

// Group is the Auto Scaling group of the machine. All fields are required.
type Group struct {
	Name     string
	Metadata *Metadata // source of the machine's id
	// Client returns a client for Auto Scaling in the machine's region. It is called for every try.
	Client func(ctx context.Context) (*awsquery.Client, error)
	Log    *slog.Logger
}

const (
	firstPause = time.Second // between two tries, doubled with each up to …
	maxPause   = 15 * time.Second
)

// Complete completes a lifecycle hook of this machine, so that the group stops waiting. It retries until it succeeds or
// ctx ends, and then returns ctx's cause with the last error. It also succeeds if the group does not wait (any more).
func (g *Group) Complete(ctx context.Context, hook string) error {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := g.complete(ctx, hook)
		switch {
		case err == nil:
			g.Log.Info("lifecycle action completed", "group", g.Name, "hook", hook)
			return nil
		case isNotAwaited(err):
			g.Log.Info("the group does not wait for this machine", "group", g.Name, "hook", hook)
			return nil
		}
		g.Log.Warn("lifecycle action could not be completed", "group", g.Name, "hook", hook, "error", err)
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

func (g *Group) complete(ctx context.Context, hook string) error {
	id, ok, err := g.Metadata.Get(ctx, "instance-id")
	if err == nil && !ok {
		err = errors.New("instance metadata: no instance-id")
	}
	if err != nil {
		return err
	}
	api, err := g.Client(ctx)
	if err != nil {
		return err
	}
	return api.Call(ctx, "CompleteLifecycleAction", url.Values{
		"AutoScalingGroupName": {g.Name}, "LifecycleHookName": {hook}, "InstanceId": {id}, "LifecycleActionResult": {"CONTINUE"},
	}, nil)
}

// isNotAwaited reports whether AWS refused because the group does not wait at the hook: the machine was never held
// back, the hook timed out, or an earlier try succeeded and its response was lost.
func isNotAwaited(err error) bool {
	e, ok := errors.AsType[*awsquery.Error](err)
	return ok && e.Code == "ValidationError" && strings.Contains(strings.ToLower(e.Message), "no active lifecycle action")
}
