package app

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// scaling is an Auto Scaling service that notes which lifecycle actions were completed.
type scaling struct {
	mu   sync.Mutex
	done []string
}

func (s *scaling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, strings.Join([]string{
		r.FormValue("Action"), r.FormValue("AutoScalingGroupName"), r.FormValue("LifecycleHookName"), r.FormValue("InstanceId"), r.FormValue("LifecycleActionResult"),
	}, " "))
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprint(w, `<CompleteLifecycleActionResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><CompleteLifecycleActionResult/></CompleteLifecycleActionResponse>`)
}

func (s *scaling) completed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.done, ", ")
}

// A machine of an Auto Scaling group: the group hears when the host has registered; when the group ends the machine,
// the host drains, the group hears that, and the runner stays until it is told to end.
func TestLifecycleHooksAreCompleted(t *testing.T) {
	group := &scaling{}
	api := httptest.NewServer(group)
	defer api.Close()
	meta := imds.Start(t, map[string]string{imds.InstanceID: "i-1", imds.Region: "eu-central-1", imds.Target: "InService"})
	for name, value := range map[string]string{
		imds.Endpoint: meta.URL, "AWS_ENDPOINT_URL": api.URL, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none",
	} {
		t.Setenv(name, value)
	}
	s := settings(t, testenv.Redis(t))
	s.InstanceSettings = InstanceSettings{Instance: "aws", ScalingGroup: "reveille-gpu-1", LaunchHook: "runner-ready", TerminateHook: "runner-drained"}
	store, err := state.Open(state.Options{URL: s.RedisURL, Secret: []byte(s.RunnerSecret), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	host := func() string {
		snap, err := store.Snapshot(context.Background())
		if err != nil || snap.Hosts["h"] == nil {
			return ""
		}
		return string(snap.Hosts["h"].State)
	}
	at, end := running(t, s)
	launched := "CompleteLifecycleAction reveille-gpu-1 runner-ready i-1 CONTINUE"
	kit.Eventually(t, "the launch is completed", func() bool { return group.completed() == launched })
	if st := host(); st != "ready" {
		t.Errorf("completed when the host was %q", st)
	}
	meta.Set(imds.Target, "Terminated")
	terminated := launched + ", CompleteLifecycleAction reveille-gpu-1 runner-drained i-1 CONTINUE"
	kit.Eventually(t, "the termination is completed", func() bool { return group.completed() == terminated })
	if st := host(); st != "asleep" {
		t.Errorf("completed when the host was %q", st)
	}
	resp, err := http.Get("http://" + at + "/runner/health")
	if err != nil {
		t.Fatalf("the runner is gone: %v", err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err := end(); err != nil {
		t.Error(err)
	}
	if got := group.completed(); got != terminated {
		t.Errorf("completed: %s", got)
	}
}

func TestInvalidInstanceFlagsAreRefused(t *testing.T) {
	parse := func(args ...string) error {
		t.Helper()
		s, err := flags(t, args...)
		if err != nil {
			return err
		}
		return s.checkInstance()
	}
	for _, args := range [][]string{nil, {"--instance=aws"}, {"--instance=aws", "--scaling-group=g", "--launch-hook=h"}} {
		if err := parse(args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	for want, args := range map[string][]string{
		"--instance":      {"--instance=gcp"},
		"--scaling-group": {"--instance=aws", "--launch-hook=h"},
		"--slot=instance": {"--slot=instance", "--host=gpu"},
		"--slot needs":    {"--slot=pod"},
		"--instance=aws":  {"--scaling-group=g", "--terminate-hook=h"},
	} {
		if err := parse(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
