package stack

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	astypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/kit"
)

// deployment is the prefix of all names: the name and environment that newTerraform gives.
const deployment = "reveille-local"

const (
	patience = 5 * time.Minute        // longest wait for what must happen
	glance   = 200 * time.Millisecond // between two looks
)

// cloud is an emulator as the tests look at what was made there.
type cloud struct {
	*aws.Emulator
	t       *testing.T
	hosts   *ec2.Client
	groups  *autoscaling.Client
	objects *s3.Client
}

func newCloud(t *testing.T, spec aws.Spec) *cloud {
	t.Helper()
	e := aws.StartWith(t, spec)
	return &cloud{
		e, t, ec2.NewFromConfig(e.Config()), autoscaling.NewFromConfig(e.Config()),
		s3.NewFromConfig(e.Config(), func(o *s3.Options) { o.UsePathStyle = true }),
	}
}

// instances are those with a tag that are not terminated.
func (c *cloud) instances(tag, value string) (found []types.Instance) {
	c.t.Helper()
	out, err := c.hosts.DescribeInstances(c.t.Context(), &ec2.DescribeInstancesInput{Filters: []types.Filter{
		{Name: sdk.String("tag:" + tag), Values: []string{value}},
		{Name: sdk.String("instance-state-name"), Values: []string{"pending", "running", "stopping", "stopped"}},
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range out.Reservations {
		found = append(found, r.Instances...)
	}
	return found
}

// instance is the one of instances, nil when there is none.
func (c *cloud) instance(tag, value string) *types.Instance {
	c.t.Helper()
	found := c.instances(tag, value)
	switch len(found) {
	case 0:
		return nil
	case 1:
		return &found[0]
	}
	c.t.Fatalf("%d instances have the tag %s %s", len(found), tag, value)
	return nil
}

// running waits until a host's instance runs.
func (c *cloud) running(host string) (i types.Instance) {
	c.t.Helper()
	kit.Within(c.t, patience, host+" runs", func() bool {
		found := c.instance("Host", host)
		if found == nil || found.State.Name != types.InstanceStateNameRunning {
			return false
		}
		i = *found
		return true
	})
	return i
}

// userData is what an instance was made with.
func (c *cloud) userData(i types.Instance) string {
	c.t.Helper()
	out, err := c.hosts.DescribeInstanceAttribute(c.t.Context(), &ec2.DescribeInstanceAttributeInput{
		InstanceId: i.InstanceId, Attribute: types.InstanceAttributeNameUserData,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := base64.StdEncoding.DecodeString(sdk.ToString(out.UserData.Value))
	if err != nil || len(text) == 0 {
		c.t.Fatalf("user data of %s: %q, %v", *i.InstanceId, sdk.ToString(out.UserData.Value), err)
	}
	return string(text)
}

// identity is what an instance's metadata service tells of it, at an address.
func identity(i types.Instance, address string) map[string]string {
	out := map[string]string{"instance-id": *i.InstanceId, "local-ipv4": address}
	for _, tag := range i.Tags {
		out["tags/instance/"+*tag.Key] = *tag.Value
	}
	return out
}

// group describes a group, an empty one if there is none of that name.
func (c *cloud) group(name string) (g astypes.AutoScalingGroup) {
	c.t.Helper()
	out, err := c.groups.DescribeAutoScalingGroups(c.t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{name}})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(out.AutoScalingGroups) > 0 {
		g = out.AutoScalingGroups[0]
	}
	return g
}

// lifecycle is the state of a group's members, in its words.
func (c *cloud) lifecycle(group string) string {
	c.t.Helper()
	var states []string
	for _, i := range c.group(group).Instances {
		states = append(states, string(i.LifecycleState))
	}
	return strings.Join(states, " ")
}

// function is a Lambda function as it was made.
type function struct {
	Settings map[string]string
	Seconds  int
	Digest   string
	Events   map[string]string // by the schedule of their rule
}

// env is the environment of the function's program, over which an emulator of AWS is spoken to. Lambda gives the credentials
// of the function's role in it; the SDK takes no dual-stack endpoints beside one of ours.
func (f function) env(c *cloud, name string, more ...string) []string {
	role := c.FunctionRole(deployment + "-" + name)
	var env []string
	for k, v := range f.Settings {
		env = append(env, k+"="+v)
	}
	return append(append(env, "AWS_ENDPOINT_URL="+c.URL, "AWS_REGION="+aws.Region, "AWS_ACCESS_KEY_ID="+role.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY="+role.SecretAccessKey, "AWS_SESSION_TOKEN="+role.Token, "AWS_EC2_METADATA_DISABLED=true", "AWS_USE_DUALSTACK_ENDPOINT=false"), more...)
}

// functions are those of the deployment, by what they are.
func (c *cloud) functions() map[string]function {
	c.t.Helper()
	out := map[string]function{}
	if err := json.Unmarshal([]byte(c.python("functions.py")), &out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// left lists what there is of the deployment.
func (c *cloud) left() []string {
	c.t.Helper()
	return strings.FieldsFunc(c.python("left.py"), func(r rune) bool { return r == '\n' })
}

// python runs a script of testdata on the emulator and the deployment.
func (c *cloud) python(script string, args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), testenv.Python(c.t), append([]string{"-B", filepath.Join("testdata", script), c.URL, deployment}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", script, err, fmt.Sprint(errs.String()))
	}
	return string(out)
}
