package sleep

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/calls"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// Sizes of TestGroupServesABurst. A machine boots in 10 seconds in place of 3 minutes.
const (
	groupMax   = 8
	burst      = 64
	boot       = 10 * time.Second
	burstLimit = 3 * time.Minute // for all of it
)

// The recipe's engine serves eight requests at a time, and each takes six seconds.
const groupModels = `
models:
  m: {type: llm, recipe: eight, device: cpu, replicas: {max: 8}, options: {n_parallel: 8}}
hosts:
  gpu: {driver: asg, group: gpu, region: us-east-1, devices: [cpu], max: 8}
`

const groupRecipes = `
recipes:
  eight:
    inherit: standin
    command: [standin, [--host, "{host}"], [--port, "{port}"], [--model, "{alias}"], [--token-delay, 1s], [--tokens, "6"]]
    options: {n_parallel: {kind: int, min: 1, max: 64}}
`

// cloudGroup is an Auto Scaling group on the emulator, whose machines run a runner once they have booted, until they
// are ended.
type cloudGroup struct {
	*pool
	recipes  string
	client   *autoscaling.Client
	machines map[string]*groupMachine // that were ever launched
	most     int                      // at a time
}

type groupMachine struct {
	launched time.Time
	runner   *testenv.Program // nil until it has booted
}

// look starts and ends runners as the group's machines come and go, and returns how many machines there are.
func (g *cloudGroup) look() int {
	g.t.Helper()
	out, err := g.client.DescribeAutoScalingGroups(g.t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{"gpu"}})
	if err != nil || len(out.AutoScalingGroups) != 1 {
		g.t.Fatal(out, err)
	}
	live := map[string]bool{}
	for _, i := range out.AutoScalingGroups[0].Instances {
		if i.LifecycleState == types.LifecycleStateTerminating || i.LifecycleState == types.LifecycleStateTerminated {
			continue
		}
		id := *i.InstanceId
		live[id] = true
		m := g.machines[id]
		if m == nil {
			m = &groupMachine{launched: time.Now()}
			g.machines[id] = m
		}
		if m.runner == nil && time.Since(m.launched) >= boot {
			m.runner = g.run(id)
		}
	}
	for id, m := range g.machines {
		if m.runner != nil && !live[id] {
			m.runner.Signal(syscall.SIGTERM)
		}
	}
	g.most = max(g.most, len(live))
	return len(live)
}

// run starts the runner of a machine.
func (g *cloudGroup) run(id string) *testenv.Program {
	g.t.Helper()
	engines := g.t.TempDir()
	if err := os.Symlink(testenv.Standin(g.t), filepath.Join(engines, "standin")); err != nil {
		g.t.Fatal(err)
	}
	metadata := imds.Start(g.t, map[string]string{imds.InstanceID: id, imds.Region: aws.Region})
	env := []string{"REVEILLE_REDIS_URL=" + g.url(), "REVEILLE_RUNNER_SECRET=" + secret, imds.Endpoint + "=" + metadata.URL, "AWS_EC2_METADATA_DISABLED=false"}
	return testenv.StartProgramEnv(g.t, env, "runner-"+id, testenv.Build(g.t, "runner"), "--host=gpu", "--slot=instance", "--instance=aws",
		"--runner-addr=127.0.0.1:0", "--devices=cpu", "--state-dir="+g.t.TempDir(), "--engines-dir="+engines, "--recipes="+g.recipes)
}

// copies counts the loaded copies of the model.
func (g *cloudGroup) copies() int {
	n := 0
	for i := range groupMax {
		if g.rdb.HGet(g.t.Context(), fmt.Sprintf("rv:{main}:model:gpu-%d:m", i+1), "state").Val() == "loaded" {
			n++
		}
	}
	return n
}

// A burst of 64 requests for a model wakes as many machines of a group as serve it at the same time: all of them
// at once. All requests are answered, and all machines are ended afterwards.
func TestGroupServesABurst(t *testing.T) {
	cloud := aws.Start(t, 10*time.Millisecond)
	cloud.Group("gpu", groupMax)
	cloud.Group("first", 1) // the emulator takes seconds to launch its first machine
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": cloud.URL, "AWS_REGION": aws.Region, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	g := &cloudGroup{pool: emptyPool(t), client: autoscaling.NewFromConfig(cloud.Config()), machines: map[string]*groupMachine{}}
	first, one := "first", int32(1)
	if _, err := g.client.SetDesiredCapacity(t.Context(), &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: &first, DesiredCapacity: &one}); err != nil {
		t.Fatal(err)
	}
	g.write("recipes.yaml", groupRecipes)
	g.recipes = filepath.Join(g.dir, "recipes.yaml")
	for range 2 {
		g.gateways = append(g.gateways, testenv.StartGateway(t, g.url(), secret, groupModels+groupRecipes))
	}
	g.spawn("warmer", "--idle=3s", "--host-idle=1s", "--host-min-up=0s", "--every=1s")

	ctx, cancel := context.WithTimeout(t.Context(), burstLimit)
	defer cancel()
	c, answers, began := client(t), make(chan calls.Answer, burst), time.Now()
	for i := range burst {
		go func() { answers <- calls.Chat(ctx, c, g.gateways[i%len(g.gateways)].URL, "m", 6, false) }()
	}
	served := map[string]int{}
	var firstCopy, allCopies, last time.Duration
	for answered := 0; answered < burst; {
		g.look()
		switch n := g.copies(); {
		case n >= 1 && firstCopy == 0:
			firstCopy = time.Since(began)
		case n == groupMax && allCopies == 0:
			allCopies = time.Since(began)
		}
		for more := true; more; {
			select {
			case a := <-answers:
				if !a.OK() {
					t.Fatal(a)
				}
				answered++
				served[a.Header.Get("X-Runner")]++
				last = time.Since(began)
			default:
				more = false
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	kit.Becomes(t, "machines", 0, g.look)
	gone := time.Since(began)
	var launched []string
	for _, m := range g.machines {
		launched = append(launched, fmt.Sprintf("%.1f s", m.launched.Sub(began).Seconds()))
		if m.runner != nil {
			<-m.runner.Exited()
		}
	}
	var hosts []string
	for host, n := range served {
		hosts = append(hosts, fmt.Sprintf("%s: %d", host, n))
	}
	wakes := func(d time.Duration) string {
		return fmt.Sprintf("%v (%.1f wakes)", d.Round(100*time.Millisecond), d.Seconds()/boot.Seconds())
	}
	slices.Sort(launched)
	t.Logf("machines launched after %v", launched)
	t.Logf("wakes of %v: first copy after %s, eight after %s, last response after %s, no machine after %s; %d machines launched, %d at a time; %s",
		boot, wakes(firstCopy), wakes(allCopies), wakes(last), wakes(gone), len(g.machines), g.most, strings.Join(hosts, ", "))
	if allCopies == 0 || len(served) != groupMax || g.most > groupMax || len(g.machines) != groupMax {
		t.Errorf("%d hosts served, %d machines launched, %d at a time, want %d", len(served), len(g.machines), g.most, groupMax)
	}
}
