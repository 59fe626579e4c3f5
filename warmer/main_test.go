package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/lambda"
)

// pool opens a store on addr and makes a host with an idle model in it, which beats until the test ends.
func pool(t *testing.T, addr string) *state.Store {
	t.Helper()
	s, err := state.Open(state.Options{URL: "redis://" + addr, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	generation, _, err := s.Register(t.Context(), state.HostInfo{
		Name: "box", Boot: "b", Addr: "127.0.0.1:1", Devices: "cpu", Limits: "1",
		Models: []state.ModelPut{{ID: "chat", Fields: map[string]string{"type": "llm", "state": "loaded", "used_age_ms": "864000000"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		for tick := time.Tick(time.Second); ; {
			select {
			case <-ended:
				return
			case <-tick:
				_, _, _ = s.Beat(context.Background(), "box", generation, false, nil) // the next one tries again
			}
		}
	})
	t.Cleanup(func() { close(ended); beating.Wait() })
	return s
}

func environment(addr string, more ...string) []string {
	return append(append(os.Environ(), "REVEILLE_REDIS_URL=redis://"+addr, "AWS_EC2_METADATA_DISABLED=true"), more...)
}

func queued(t *testing.T, s *state.Store) int {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(snap.Hosts["box"].Queue)
}

func TestOnce(t *testing.T) {
	binary, addr := testenv.Build(t, "./warmer"), testenv.Redis(t)
	s := pool(t, addr)
	call := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.Command(binary, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = environment(addr), &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatal(err, errs.String())
		}
		return out.String()
	}
	table := call("--once", "--dry-run")
	for _, want := range []string{"ACTION  HOST", "unload  box   chat   planned  model_idle: unused for", "box   ready"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if n := queued(t, s); n != 0 {
		t.Fatal("the dry run queued", n)
	}
	var report struct {
		Actions []map[string]string `json:"actions"`
	}
	if err := json.Unmarshal([]byte(call("--once", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Actions) != 1 || report.Actions[0]["result"] != "queued" || queued(t, s) != 1 {
		t.Error("report:", report.Actions, "queued:", queued(t, s))
	}
}

func TestBadSettings(t *testing.T) {
	binary := testenv.Build(t, "./warmer")
	for _, args := range [][]string{{"--every", "0s"}, {"--idle", "soon"}, {"--redis-url", "nonsense://x", "--once"}} {
		if out, err := exec.Command(binary, args...).CombinedOutput(); err == nil {
			t.Errorf("%v is accepted: %s", args, out)
		}
	}
	out, err := exec.Command(binary, "--once", "--redis-url", "redis://127.0.0.1:1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "state store unavailable") || strings.Contains(string(out), "nothing to do") {
		t.Error("without Redis:", err, string(out))
	}
}

// TestLambda runs the real program as AWS does: an environment that is handed schedule events.
func TestLambda(t *testing.T) {
	addr := testenv.Redis(t)
	s := pool(t, addr)
	event, err := os.ReadFile("testdata/schedule-event.json")
	if err != nil {
		t.Fatal(err)
	}
	f := lambda.Start(t, lambda.Spec{
		Name: "warmer", Binary: testenv.Build(t, "./warmer"), Env: []string{"REVEILLE_REDIS_URL=redis://" + addr, "AWS_EC2_METADATA_DISABLED=true"},
	})
	for i, want := range []string{`{"actions":1,"failures":0}`, `{"actions":0,"failures":0}`} {
		r, err := f.Invoke(event)
		if err != nil || r.Failed || string(r.Payload) != want {
			t.Fatalf("event %d: %s %v %v, want %s", i+1, r.Payload, r.Failed, err, want)
		}
		if queued(t, s) != 1 {
			t.Error("no unload is queued")
		}
	}
	if r, err := f.Invoke([]byte(`"not an event"`)); err != nil || !r.Failed {
		t.Fatal("an event that is none:", string(r.Payload), err)
	}
	metrics := 0
	for line := range strings.Lines(f.Log()) {
		if strings.HasPrefix(line, `{`) && strings.Contains(line, `"CloudWatchMetrics"`) {
			metrics++
		}
	}
	if metrics != 4 {
		t.Errorf("%d lines of metrics, want the pool's and the failures of two sweeps, in\n%s", metrics, f.Log())
	}
}

// TestLambdaLeavesAMachineThatStops: stopping a GPU instance takes minutes. The sweep that began it ends in time and
// without an error, having written its metrics, and the next one continues.
func TestLambdaLeavesAMachineThatStops(t *testing.T) {
	const secret = "0123456789abcdef0123456789abcdef"
	addr, cloud := testenv.Redis(t), aws.StartWith(t, aws.Spec{Settle: 3 * time.Minute, Virtual: true})
	api, one := awsec2.NewFromConfig(cloud.Config()), int32(1)
	launched, err := api.RunInstances(t.Context(), &awsec2.RunInstancesInput{
		ImageId: sdk.String(aws.Image), MinCount: &one, MaxCount: &one, TagSpecifications: []types.TagSpecification{
			{ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: sdk.String("Project"), Value: sdk.String("p")}, {Key: sdk.String("Host"), Value: sdk.String("box")}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	instance := *launched.Instances[0].InstanceId
	s, err := state.Open(state.Options{URL: "redis://" + addr, Timeout: 10 * time.Second, Secret: []byte(secret)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, _, err := catalog.Parse("models.yaml", []byte("models: {m: {type: llm, recipe: standin, device: cpu}}\nhosts: {box: {driver: ec2, region: us-east-1, instance: "+instance+", devices: [cpu]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.Marshal()
	if err == nil {
		_, err = s.PutCatalog(t.Context(), c.Version, raw, map[string]string{"box": "ec2"})
	}
	if err != nil {
		t.Fatal(err)
	}
	generation, _, err := s.Register(t.Context(), state.HostInfo{Name: "box", Boot: "b", Addr: "127.0.0.1:1", Devices: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	host := func() *state.HostRecord {
		t.Helper()
		snap, err := s.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snap.Hosts["box"]
	}
	var runner sync.WaitGroup
	defer runner.Wait()
	runner.Go(func() { // it confirms its sleep and is gone
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if h := host(); h.State == "draining" && s.ConfirmSleep(context.Background(), "box", generation, h.Fields["sleep_token"], false) == nil {
				return
			}
			_, _, _ = s.Beat(context.Background(), "box", generation, false, nil)
		}
	})
	f := lambda.Start(t, lambda.Spec{
		Name: "warmer", Binary: testenv.Build(t, "./warmer"), Timeout: 25 * time.Second, Env: []string{
			"REVEILLE_REDIS_URL=redis://" + addr, "REVEILLE_RUNNER_SECRET=" + secret, "REVEILLE_HOST_IDLE=1ms", "REVEILLE_HOST_MIN_UP=0s", "REVEILLE_PROJECT=p",
			"AWS_ENDPOINT_URL=" + cloud.URL, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true",
		},
	})
	invoke := func() {
		t.Helper()
		r, err := f.Invoke([]byte(`{}`))
		if want := `{"actions":1,"failures":0}`; err != nil || r.Failed || string(r.Payload) != want {
			t.Fatalf("%s %v %v, want %s\n%s", r.Payload, r.Failed, err, want, f.Log())
		}
	}
	power := func() string {
		t.Helper()
		out, err := api.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{InstanceIds: []string{instance}})
		if err != nil {
			t.Fatal(err)
		}
		return string(out.Reservations[0].Instances[0].State.Name)
	}
	invoke()
	if h := host(); power() != "stopping" || h.Fields["sleep_token"] == "" || !strings.Contains(f.Log(), `"HostsRunning":1`) {
		t.Errorf("machine %s, token %q\n%s", power(), h.Fields["sleep_token"], f.Log())
	}
	cloud.Advance(3 * time.Minute)
	invoke()
	if h := host(); power() != "stopped" || h.State != "asleep" || h.Fields["sleep_token"] != "" {
		t.Errorf("machine %s, host %s, token %q", power(), h.State, h.Fields["sleep_token"])
	}
}
