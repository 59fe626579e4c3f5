package instance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"reveille/infra/awsquery"
	"reveille/runner/instance"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// cloud fails with what it is given, one call each, and notes what was asked of it. An empty error loses the
// connection.
type cloud struct {
	mu    sync.Mutex
	fails []awsquery.Error
	calls []string
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, r.FormValue("AutoScalingGroupName")+" "+r.FormValue("LifecycleHookName")+" "+r.FormValue("InstanceId")+" "+r.FormValue("LifecycleActionResult"))
	if len(c.fails) == 0 {
		return
	}
	fail := c.fails[0]
	c.fails = c.fails[1:]
	if fail.Code == "" {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprintf(w, "<ErrorResponse><Error><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>", fail.Code, fail.Message)
}

func group(t *testing.T, c *cloud, data map[string]string) *instance.Group {
	s, scaling := imds.Start(t, data), httptest.NewServer(c)
	t.Cleanup(scaling.Close)
	client := awsquery.AutoScaling(aws.Config{
		Region: "us-east-1", BaseEndpoint: &scaling.URL, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), HTTPClient: scaling.Client(),
	})
	return &instance.Group{
		Name: "reveille-gpu-1", Metadata: metadata(t, s.URL), Client: func(context.Context) (*awsquery.Client, error) { return client, nil }, Log: logTo(io.Discard),
	}
}

func TestCompleteRetriesUntilTheGroupHasIt(t *testing.T) {
	id := map[string]string{imds.InstanceID: "i-1"}
	gone := awsquery.Error{Code: "ValidationError", Message: "No active Lifecycle Action found with instance ID i-1"}
	for name, c := range map[string]struct {
		fails []awsquery.Error
		calls int
	}{
		"at once":          {nil, 1},
		"after a failure":  {[]awsquery.Error{{Code: "Throttling"}}, 2},
		"nobody waits":     {[]awsquery.Error{gone}, 1},
		"its answer lost":  {[]awsquery.Error{{}, gone}, 2},
		"a role to be new": {[]awsquery.Error{{Code: "AccessDenied"}}, 2},
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
func TestCompleteEndsWithItsContext(t *testing.T) {
	refused := awsquery.Error{Code: "ValidationError", Message: "no such group"}
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
			g := group(t, &cloud{fails: slices.Repeat([]awsquery.Error{refused}, 100)}, c.data)
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
