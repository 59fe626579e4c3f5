package stack

import (
	"context"
	"errors"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"

	"reveille/testenv/aws"
	"reveille/testenv/kit"
)

// caller makes calls with the credentials of a role.
type caller struct {
	ctx     context.Context
	hosts   *ec2.Client
	groups  *autoscaling.Client
	objects *s3.Client
	secrets *secretsmanager.Client
}

func (c *cloud) as(role aws.Role) caller {
	config := c.ConfigAs(role)
	return caller{
		c.t.Context(), ec2.NewFromConfig(config), autoscaling.NewFromConfig(config),
		s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true }), secretsmanager.NewFromConfig(config),
	}
}

func (c caller) start(id string) error {
	_, err := c.hosts.StartInstances(c.ctx, &ec2.StartInstancesInput{InstanceIds: []string{id}})
	return err
}

func (c caller) stop(id string) error {
	_, err := c.hosts.StopInstances(c.ctx, &ec2.StopInstancesInput{InstanceIds: []string{id}})
	return err
}

func (c caller) terminate(id string) error {
	_, err := c.hosts.TerminateInstances(c.ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{id}})
	return err
}

func (c caller) resize(group string, size int32) error {
	_, err := c.groups.SetDesiredCapacity(c.ctx, &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: &group, DesiredCapacity: &size})
	return err
}

func (c caller) shrink(member string) error {
	_, err := c.groups.TerminateInstanceInAutoScalingGroup(c.ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: &member, ShouldDecrementDesiredCapacity: sdk.Bool(true),
	})
	return err
}

func (c caller) complete(group, member string) error {
	_, err := c.groups.CompleteLifecycleAction(c.ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &group, InstanceId: &member, LifecycleHookName: sdk.String("runner-ready"), LifecycleActionResult: sdk.String("CONTINUE"),
	})
	return err
}

func (c caller) activities(group string) error {
	_, err := c.groups.DescribeScalingActivities(c.ctx, &autoscaling.DescribeScalingActivitiesInput{AutoScalingGroupName: &group})
	return err
}

func (c caller) get(bucket, key string) error {
	_, err := c.objects.GetObject(c.ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	return err
}

func (c caller) put(bucket, key string) error {
	_, err := c.objects.PutObject(c.ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("")})
	return err
}

func (c caller) remove(bucket, key string) error {
	_, err := c.objects.DeleteObject(c.ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
	return err
}

func (c caller) list(bucket string, prefix *string) error {
	_, err := c.objects.ListObjectsV2(c.ctx, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: prefix})
	return err
}

func (c caller) secret(name string) error { return c.secretAt(deployment + "/" + name) }

func (c caller) secretAt(id string) error {
	_, err := c.secrets.GetSecretValue(c.ctx, &secretsmanager.GetSecretValueInput{SecretId: &id})
	return err
}

// denied reports whether an error says that a role may not do a thing.
func denied(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && slices.Contains([]string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}, api.ErrorCode())
}

// rolesHold tries what each role may do that the story has not done yet, and what it must not do, while all hosts sleep.
func (s *story) rolesHold(bucket string) {
	s.t.Helper()
	gatewayID, gpuID := *s.cloud.instance("Name", deployment+"-gateway").InstanceId, *s.cloud.instance("Host", "gpu-1").InstanceId
	gateway, runner := s.cloud.as(s.cloud.InstanceRole(gatewayID)), s.cloud.as(s.cloud.InstanceRole(gpuID))
	warmer := s.cloud.as(s.cloud.FunctionRole(deployment + "-warmer"))
	group := deployment + "-npu-1"

	may := func(what string, err error) {
		s.t.Helper()
		if err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
	}
	s.cloud.PutSecret(deployment+"/redis", "{}")
	may("warmer reads the password of Redis", warmer.secret("redis"))
	may("runner reads the password of Redis", runner.secret("redis"))
	_, err := s.cloud.as(aws.Administrator).secrets.DeleteSecret(s.t.Context(), &secretsmanager.DeleteSecretInput{
		SecretId: sdk.String(deployment + "/redis"), ForceDeleteWithoutRecovery: sdk.Bool(true),
	})
	may("administrator deletes it", err)
	may("gateway looks at a group", gateway.activities(group))
	may("warmer looks at a group", warmer.activities(group))
	may("warmer wakes an instance", warmer.start(gpuID))
	s.cloud.running("gpu-1")
	may("gateway puts an instance to sleep", gateway.stop(gpuID))
	s.stopped("gpu-1")
	may("warmer wakes a group", warmer.resize(group, 1))
	may("gateway puts a group to sleep", gateway.resize(group, 0))
	empty := func() bool { return s.cloud.instance("Host", "npu-1") == nil }
	kit.Within(s.t, patience, "the group is empty", empty)
	may("warmer wakes the group again", warmer.resize(group, 1))
	may("warmer puts the group to sleep", warmer.resize(group, 0))
	kit.Within(s.t, patience, "the group is empty again", empty)
	_, err = gateway.hosts.DescribeInstances(s.t.Context(), &ec2.DescribeInstancesInput{})
	may("gateway looks at instances", err)

	// A stack beside this one, whose prefix begins with this one's.
	beside := deployment + "-b-npu-1"
	member := *s.cloud.launch(beside, deployment+"-b").InstanceId

	for what, err := range map[string]error{
		"gateway changes a group beside":      gateway.resize(beside, 0),
		"gateway ends a host beside":          gateway.shrink(member),
		"warmer changes a group beside":       warmer.resize(beside, 0),
		"warmer ends a host beside":           warmer.shrink(member),
		"runner completes a launch beside":    runner.complete(beside, member),
		"gateway stops itself":                gateway.stop(gatewayID),
		"gateway terminates a host":           gateway.terminate(gpuID),
		"gateway writes the catalogue":        gateway.put(bucket, "config/models.yaml"),
		"gateway deletes a program":           gateway.remove(bucket, "artifacts/runner_linux_amd64"),
		"gateway reads weights":               gateway.get(bucket, "models/chat.bin"),
		"gateway lists the bucket":            gateway.list(bucket, sdk.String("models/")),
		"gateway changes another group":       gateway.resize("other-npu-1", 1),
		"warmer stops the gateway":            warmer.stop(gatewayID),
		"warmer starts the gateway":           warmer.start(gatewayID),
		"warmer terminates a host":            warmer.terminate(gpuID),
		"warmer reads the API keys":           warmer.secret("api-keys"),
		"warmer reads the runner secret":      warmer.secret("runner-secret"),
		"warmer reads the catalogue":          warmer.get(bucket, "config/models.yaml"),
		"warmer changes another group":        warmer.resize("other-npu-1", 1),
		"runner reads the API keys":           runner.secret("api-keys"),
		"runner stops itself":                 runner.stop(gpuID),
		"runner wakes a group":                runner.resize(group, 1),
		"runner reads the catalogue":          runner.get(bucket, "config/models.yaml"),
		"runner reads what is not there":      runner.get(bucket, "models/none"),
		"runner lists the catalogue's folder": runner.list(bucket, sdk.String("config/")),
		"runner lists the whole bucket":       runner.list(bucket, nil),
		"runner writes weights":               runner.put(bucket, "models/chat.bin"),
		"runner deletes weights":              runner.remove(bucket, "models/chat.bin"),
		"runner looks at groups":              runner.activities(group),
	} {
		if !denied(err) {
			s.t.Errorf("%s: %v, want a refusal", what, err)
		}
	}
	if got := s.cloud.lifecycle(beside); got != "Pending:Wait" {
		s.t.Errorf("the group of the stack beside has hosts in state %q", got)
	}
	s.cloud.abandon(beside)
	if i := s.cloud.instance("Name", deployment+"-gateway"); i.State.Name != types.InstanceStateNameRunning {
		s.t.Errorf("the gateway's instance is %s", i.State.Name)
	}
}

// grantsUsed: each statement that the README names for a call has allowed that call, and no other statement would have.
func (s *story) grantsUsed() {
	s.t.Helper()
	used := map[string]bool{}
	for _, g := range s.cloud.Grants() {
		role := strings.TrimSuffix(strings.TrimPrefix(g.Role, deployment+"-"), "-"+aws.Region)
		used[role+" "+g.Statement+" "+g.Action] = true
	}
	_, granted, _ := callTable(s.t, read(s.t, "terraform", "README.md"))
	for grant := range granted {
		if !used[grant] {
			s.t.Errorf("no call needed this statement of a role: %s", grant)
		}
	}
}
