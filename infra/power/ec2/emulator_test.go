package ec2_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/ec2"
	"reveille/testenv/aws"
	"reveille/testenv/waketest"
)

// cloudlet is the driver with an emulator.
type cloudlet struct {
	t      *testing.T
	cloud  *aws.Emulator
	api    *awsec2.Client
	driver *ec2.Driver
}

const settle = 100 * time.Millisecond

func emulator(t *testing.T) *cloudlet {
	t.Helper()
	cloud := aws.Start(t, settle)
	api := awsec2.NewFromConfig(cloud.Config())
	return &cloudlet{t, cloud, api, ec2.New(ec2.Config{Poll: 10 * time.Millisecond, Client: func(context.Context, string) (*awsquery.Client, error) { return awsquery.EC2(cloud.Config()), nil }})}
}

// machine launches an instance, stops it and returns its host.
func (c *cloudlet) machine() catalog.Host {
	c.t.Helper()
	one := int32(1)
	image := aws.Image
	out, err := c.api.RunInstances(c.t.Context(), &awsec2.RunInstancesInput{ImageId: &image, InstanceType: types.InstanceTypeG5Xlarge, MinCount: &one, MaxCount: &one})
	if err != nil {
		c.t.Fatal(err)
	}
	h := catalog.Host{Name: "gpu-1", Driver: catalog.DriverEC2, Instance: *out.Instances[0].InstanceId}
	if err := c.driver.Sleep(c.t.Context(), h); err != nil {
		c.t.Fatal(err)
	}
	c.becomes(h, power.Off)
	return h
}

func (c *cloudlet) becomes(h catalog.Host, want power.Power) {
	c.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got, err := c.driver.State(c.t.Context(), h)
		if err != nil {
			c.t.Fatal(err)
		}
		if got == want {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("state is %s, want %s", got, want)
		}
	}
}

func TestOnTheEmulator(t *testing.T) {
	c := emulator(t)
	for name, part := range map[string]func(*cloudlet, *testing.T){"contract": (*cloudlet).contract, "refusals": (*cloudlet).refusals} {
		t.Run(name, func(t *testing.T) {
			own := *c
			own.t = t
			part(&own, t)
		})
	}
}

func (c *cloudlet) contract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		h := c.machine()
		return waketest.Fixture{
			Driver: patient{c.driver}, Host: h, Strange: &catalog.Host{Name: "x", Instance: "i-00000000000000000"},
		}
	})
}

// patient retries what power.Set retries: the sleep of a machine that is still starting.
type patient struct{ *ec2.Driver }

func (p patient) Sleep(ctx context.Context, h catalog.Host) error {
	for {
		err := p.Driver.Sleep(ctx, h)
		if !errors.Is(err, power.ErrStarting) || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *cloudlet) refusals(t *testing.T) {
	ctx := t.Context()
	h := c.machine()
	expect := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}

	c.cloud.SoldOut(true)
	expect("wake without capacity", c.driver.Wake(ctx, h), power.ErrNoCapacity)
	c.becomes(h, power.Off)
	c.cloud.SoldOut(false)

	c.cloud.Refuse("StartInstances", "RequestLimitExceeded", 2)
	expect("wake, throttled", c.driver.Wake(ctx, h), power.ErrThrottled)
	set := power.NewSet(power.SetConfig{
		Catalog: func() *catalog.Catalog { return listing(t, h.Instance) }, Pause: time.Millisecond, Drivers: map[catalog.Driver]power.Driver{catalog.DriverEC2: c.driver},
	})
	expect("wake, throttled once more and repeated", set.Wake(ctx, "gpu-1"), nil)
	if is, err := c.driver.State(ctx, h); is != power.On || err != nil {
		t.Errorf("after a wake the instance is %s, %v", is, err)
	}
	expect("wake of one that runs", c.driver.Wake(ctx, h), nil)

	c.cloud.Refuse("StopInstances", "RequestLimitExceeded", 1)
	expect("sleep, throttled", c.driver.Sleep(ctx, h), power.ErrThrottled)
	expect("sleep", c.driver.Sleep(ctx, h), nil)
	expect("wake of one that stops", c.driver.Wake(ctx, h), power.ErrStopping)
	expect("sleep of one that stops", c.driver.Sleep(ctx, h), nil)
	expect("wake of one that stops, waited for", set.Wake(ctx, "gpu-1"), nil)
	expect("sleep", c.driver.Sleep(ctx, h), nil)
	c.becomes(h, power.Off)
	if _, err := c.api.StartInstances(ctx, &awsec2.StartInstancesInput{InstanceIds: []string{h.Instance}}); err != nil {
		t.Fatal(err)
	}
	expect("sleep of one that starts", c.driver.Sleep(ctx, h), power.ErrStarting)
	expect("wake of one that starts", c.driver.Wake(ctx, h), nil)
	expect("sleep of one that runs", c.driver.Sleep(ctx, h), nil)
	c.becomes(h, power.Off)

	c.cloud.SoldOutLate()
	err := c.driver.Wake(ctx, h)
	expect("a start that is accepted and falls back", err, power.ErrNoCapacity)
	if err == nil || !strings.Contains(err.Error(), "is stopped again: Server.InsufficientInstanceCapacity: ") {
		t.Errorf("%v does not say AWS's reason", err)
	}
	c.cloud.SoldOut(false)
	expect("wake", c.driver.Wake(ctx, h), nil)

	c.cloud.Refuse("StartInstances", "UnauthorizedOperation", 1)
	expect("wake, not permitted", c.driver.Wake(ctx, h), power.ErrDenied)
	if _, err := c.api.TerminateInstances(ctx, &awsec2.TerminateInstancesInput{InstanceIds: []string{h.Instance}}); err != nil {
		t.Fatal(err)
	}
	expect("wake of one that is terminated", c.driver.Wake(ctx, h), power.ErrUnknownHost)
	expect("sleep of one that is terminated", c.driver.Sleep(ctx, h), nil)
	c.becomes(h, power.Off)
}

// listing returns a catalog with one host for an instance.
func listing(t *testing.T, instance string) *catalog.Catalog {
	c, _, err := catalog.Parse("models.yaml", []byte("models: {m: {type: llm, recipe: standin, device: gpu}}\nhosts: {gpu-1: {driver: ec2, instance: "+instance+", devices: [gpu]}}\n"))
	if err != nil {
		t.Error(err)
	}
	return c
}

// TestMachines: those that are billed, of one project, and hosts alone.
func TestMachines(t *testing.T) {
	c := emulator(t)
	launch := func(tags map[string]string) string {
		one, image := int32(1), aws.Image
		spec := types.TagSpecification{ResourceType: types.ResourceTypeInstance}
		for k, v := range tags {
			spec.Tags = append(spec.Tags, types.Tag{Key: &k, Value: &v})
		}
		out, err := c.api.RunInstances(t.Context(), &awsec2.RunInstancesInput{
			ImageId: &image, InstanceType: types.InstanceTypeG5Xlarge, MinCount: &one, MaxCount: &one, TagSpecifications: []types.TagSpecification{spec},
		})
		if err != nil {
			t.Fatal(err)
		}
		return *out.Instances[0].InstanceId
	}
	launch(map[string]string{"Project": "other", "Host": "gpu-9"})
	launch(map[string]string{"Project": "mine", "Name": "gateway"})
	launch(map[string]string{"Project": "mine", "Host": "gpu-1"})
	stopped := catalog.Host{Instance: launch(map[string]string{"Project": "mine", "Host": "gpu-2"})}
	if err := c.driver.Sleep(t.Context(), stopped); err != nil {
		t.Fatal(err)
	}
	c.becomes(stopped, power.Off)
	got, err := c.driver.Machines(t.Context(), "mine")
	if err != nil || len(got) != 1 || got[0].Host != "gpu-1" || time.Since(got[0].Since) > time.Hour {
		t.Errorf("%+v, %v; want gpu-1 alone, launched just now", got, err)
	}
}
