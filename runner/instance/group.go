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

// Group is the Auto Scaling group of the machine. All fields are needed.
type Group struct {
	Name     string
	Metadata *Metadata // tells the machine's id
	// Client is Auto Scaling of the machine's region. It is asked for at every try.
	Client func(ctx context.Context) (*awsquery.Client, error)
	Log    *slog.Logger
}

const (
	firstPause = time.Second // between two tries, doubled with each up to …
	maxPause   = 15 * time.Second
)

// Complete tells the group to wait for this machine at a lifecycle hook no longer. It tries until the group has received it
// or ctx ends, whose error then comes with the last failure. A group that does not wait (any more) is as good.
func (g *Group) Complete(ctx context.Context, hook string) error {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := g.complete(ctx, hook)
		switch {
		case err == nil:
			g.Log.Info("lifecycle action completed", "group", g.Name, "hook", hook)
			return nil
		case notAwaited(err):
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
	id, there, err := g.Metadata.Get(ctx, "instance-id")
	if err == nil && !there {
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

// notAwaited reports whether AWS refused because nothing waits at the hook: the machine was never held back, the hook's
// time ran out, or an earlier try arrived and its answer was lost.
func notAwaited(err error) bool {
	e, ok := errors.AsType[*awsquery.Error](err)
	return ok && e.Code == "ValidationError" && strings.Contains(strings.ToLower(e.Message), "no active lifecycle action")
}
