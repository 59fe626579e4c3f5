package instance_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"reveille/runner/instance"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// cloud fails with what it is given, one call each, and notes what was asked of it.
type cloud struct {
	mu    sync.Mutex
	fails []error
	calls []string
}

func (c *cloud) CompleteLifecycleAction(_ context.Context, in *autoscaling.CompleteLifecycleActionInput, _ ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, *in.AutoScalingGroupName+" "+*in.LifecycleHookName+" "+*in.InstanceId+" "+*in.LifecycleActionResult)
	if len(c.fails) > 0 {
		err := c.fails[0]
		c.fails = c.fails[1:]
		return nil, err
	}
	return &autoscaling.CompleteLifecycleActionOutput{}, nil
}

func group(t *testing.T, c *cloud, data map[string]string) *instance.Group {
	s := imds.Start(t, data)
	return &instance.Group{
		Name: "reveille-gpu-1", Metadata: metadata(t, s.URL), Client: func(context.Context) (instance.API, error) { return c, nil }, Log: logTo(io.Discard),
	}
}

func TestComplete(t *testing.T) {
	id := map[string]string{imds.InstanceID: "i-1"}
	gone := &smithy.GenericAPIError{Code: "ValidationError", Message: "No active Lifecycle Action found with instance ID i-1"}
	for name, c := range map[string]struct {
		fails []error
		calls int
	}{
		"at once":          {nil, 1},
		"after a failure":  {[]error{&smithy.GenericAPIError{Code: "Throttling"}}, 2},
		"nobody waits":     {[]error{gone}, 1},
		"its answer lost":  {[]error{errors.New("connection reset"), gone}, 2},
		"a role to be new": {[]error{&smithy.GenericAPIError{Code: "AccessDenied"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &cloud{fails: c.fails}
			if err := group(t, api, id).Complete(t.Context(), "runner-ready"); err != nil {
				t.Error(err)
			}
			if len(api.calls) != c.calls || api.calls[0] != "reveille-gpu-1 runner-ready i-1 CONTINUE" {
				t.Errorf("%q", api.calls)
			}
		})
	}
}

// What does not pass ends with ctx, and is told.
func TestCompleteGivesUp(t *testing.T) {
	refused := &smithy.GenericAPIError{Code: "ValidationError", Message: "no such group"}
	for name, c := range map[string]struct {
		data map[string]string
		want string
	}{
		"refused": {map[string]string{imds.InstanceID: "i-1"}, "no such group"},
		"no id":   {nil, "no instance-id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log := &kit.Buffer{}
			g := group(t, &cloud{fails: slices.Repeat([]error{refused}, 100)}, c.data)
			g.Log = logTo(log)
			ended := make(chan error, 1)
			go func() { ended <- g.Complete(ctx, "hook") }()
			kit.Eventually(t, "a failure is logged", func() bool { return strings.Count(log.String(), "could not be completed") > 0 })
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
