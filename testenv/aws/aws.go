// Package aws gives tests an AWS on loopback: the moto server of the tests' Python, with this folder's patches for what it
// lacks, in a process of its own per test.
package aws

import (
	"bufio"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"reveille/testenv"
)

// Region is where all resources of an Emulator are.
const Region = "us-east-1"

// Image is a machine image that every Emulator has.
const Image = "ami-12c6146b"

const emulatorStart = 3 * time.Minute // longest until it tells its address

// Emulator is a running AWS. Its methods are safe for concurrent use.
type Emulator struct {
	URL string // http://127.0.0.1:PORT, for every service

	t testing.TB
}

// Start runs an emulator until the test ends. A machine there takes settle to start or to stop.
func Start(t testing.TB, settle time.Duration) *Emulator {
	t.Helper()
	return StartWith(t, Spec{Settle: settle})
}

// Spec is what an emulator is told.
type Spec struct {
	Settle     time.Duration // that a machine takes to start or to stop
	Virtual    bool          // Settle is virtual time, which Advance lets pass
	Serverless string        // host:port where every serverless cache of ElastiCache is found; default 127.0.0.1:6379
}

// StartWith is Start of an emulator that is told more.
func StartWith(t testing.TB, spec Spec) *Emulator {
	t.Helper()
	script := filepath.Join(testenv.Root(t), "testenv", "aws", "emulator.py")
	cmd := exec.Command(testenv.Python(t), "-B", script, "--settle", strconv.FormatFloat(spec.Settle.Seconds(), 'f', -1, 64))
	if spec.Virtual {
		cmd.Args = append(cmd.Args, "--virtual")
	}
	if spec.Serverless != "" {
		cmd.Args = append(cmd.Args, "--serverless", spec.Serverless)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe() // its end is the emulator's, whatever ends this process
	if err != nil {
		t.Fatal("testenv:", err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal("testenv: AWS emulator:", err)
	}
	first := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n') // "" when it ended
		first <- strings.TrimSpace(line)
	}()
	ended := func() {
		_ = in.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait()
	}
	t.Cleanup(func() {
		ended()
		if t.Failed() {
			t.Log("what the AWS emulator said but for answers with status 200:\n" + complaints(errs.String()))
		}
	})
	select {
	case line := <-first:
		if line == "" {
			_ = cmd.Wait()
			t.Fatalf("testenv: AWS emulator ended at start: %s", errs.String())
		}
		return &Emulator{URL: line, t: t}
	case <-time.After(emulatorStart):
		t.Fatalf("testenv: AWS emulator has told no address in %v", emulatorStart)
		return nil
	}
}

// complaints are the last lines of a log that tell of no call that went well.
func complaints(log string) string {
	const most = 60
	var lines []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `" 200 -`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// Config is for clients of the emulator's services; they make no second attempt.
func (e *Emulator) Config() aws.Config {
	return aws.Config{
		Region: Region, BaseEndpoint: aws.String(e.URL), RetryMaxAttempts: 1, HTTPClient: client{awshttp.NewBuildableClient()},
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
}

// Group makes an empty Auto Scaling group in two zones, of at most so many machines: of one instance type, or of any of
// several, the first machine on-demand and the others spot.
func (e *Emulator) Group(name string, most int32, instanceTypes ...string) {
	e.t.Helper()
	image, version, zero, one := Image, "$Latest", int32(0), int32(1)
	group := &autoscaling.CreateAutoScalingGroupInput{
		AutoScalingGroupName: &name, MinSize: &zero, MaxSize: &most, DesiredCapacity: &zero, AvailabilityZones: []string{Region + "a", Region + "b"},
	}
	template := &types.LaunchTemplateSpecification{LaunchTemplateName: &name, Version: &version}
	if len(instanceTypes) == 0 {
		group.LaunchTemplate = template
	} else {
		group.MixedInstancesPolicy = &types.MixedInstancesPolicy{
			LaunchTemplate: &types.LaunchTemplate{LaunchTemplateSpecification: template},
			InstancesDistribution: &types.InstancesDistribution{
				OnDemandBaseCapacity: &one, OnDemandPercentageAboveBaseCapacity: &zero, SpotAllocationStrategy: aws.String("price-capacity-optimized"),
			},
		}
		for _, t := range instanceTypes {
			overrides := &group.MixedInstancesPolicy.LaunchTemplate.Overrides
			*overrides = append(*overrides, types.LaunchTemplateOverrides{InstanceType: &t})
		}
	}
	_, err := ec2.NewFromConfig(e.Config()).CreateLaunchTemplate(e.t.Context(), &ec2.CreateLaunchTemplateInput{
		LaunchTemplateName: &name, LaunchTemplateData: &ec2types.RequestLaunchTemplateData{ImageId: &image, InstanceType: ec2types.InstanceTypeG5Xlarge},
	})
	if err == nil {
		_, err = autoscaling.NewFromConfig(e.Config()).CreateAutoScalingGroup(e.t.Context(), group)
	}
	if err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
}

// Refuse lets the next calls of an action fail with an error code of its service.
func (e *Emulator) Refuse(action, code string, times int) {
	e.t.Helper()
	e.control("refuse", url.Values{"action": {action}, "code": {code}, "times": {strconv.Itoa(times)}})
}

// SoldOut says whether AWS has no machine left to start or to launch.
func (e *Emulator) SoldOut(yes bool) {
	e.t.Helper()
	machines := "some"
	if yes {
		machines = "none"
	}
	e.control("capacity", url.Values{"machines": {machines}})
}

// Advance lets virtual time pass.
func (e *Emulator) Advance(d time.Duration) {
	e.t.Helper()
	e.control("advance", url.Values{"seconds": {strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}})
}

// SoldOutIn takes away the machines of one zone. A group tries it first and another one after a second.
func (e *Emulator) SoldOutIn(zone string) {
	e.t.Helper()
	e.control("capacity", url.Values{"machines": {"some"}, "zone": {zone}})
}

// SoldOutLate lets EC2 accept starts of instances that are stopped again.
func (e *Emulator) SoldOutLate() {
	e.t.Helper()
	e.control("capacity", url.Values{"machines": {"late"}})
}

// FailLaunches lets the launches of groups fail, with these words.
func (e *Emulator) FailLaunches(words string) {
	e.t.Helper()
	e.control("capacity", url.Values{"machines": {"none"}, "words": {words}})
}

func (e *Emulator) control(verb string, args url.Values) {
	e.t.Helper()
	resp, err := http.Post(e.URL+"/emulator/"+verb+"?"+args.Encode(), "", nil)
	if err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		e.t.Fatalf("testenv: AWS emulator: %s %s", verb, resp.Status)
	}
}
