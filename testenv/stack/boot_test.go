package stack

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	asgtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// render is a template of the stack with values for its variables, as terraform fills it in.
func render(t *testing.T, template string, values map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(values)
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "values.json"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "terraform", "-chdir="+dir, "console")
	cmd.Stdin = strings.NewReader(`base64encode(templatefile("` + filepath.Join(testenv.Root(t), "terraform", template) + `", jsondecode(file("values.json"))))`)
	cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_DATA_DIR="+filepath.Join(dir, ".terraform"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", template, err, errs.String())
	}
	filled, err := base64.StdEncoding.DecodeString(strings.Trim(strings.TrimSpace(string(out)), `"`))
	if err != nil {
		t.Fatalf("%s: %v\n%s", template, err, out)
	}
	return string(filled)
}

// TestHostBoots is the life of a group's host: cut short while it is installed, prepared as a spare of a warm pool, booted into service, booted again, booted
// when the bucket's program is not what it should be, and booted by a release without the encoder cache's library.
func TestHostBoots(t *testing.T) {
	for _, tool := range []string{"terraform", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
	const bucket, group, secret = "models", deployment + "-gpu-1", "0123456789abcdef0123456789abcdef"
	c := newCloud(t, aws.Spec{})
	server := testenv.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server})
	t.Cleanup(func() { _ = rdb.Close() })
	folder := dist(t, "runner_linux_amd64")
	for _, name := range []string{"SHA256SUMS", "runner_linux_amd64", library} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		c.PutObject(bucket, "artifacts/"+name, string(text))
	}
	c.PutObject(bucket, "engines/gpu/tools/engine", "#!/bin/sh\n")
	c.PutSecret("runner-secret", secret)
	c.PutSecret("token", "hf_of_the_test")
	c.PutObject(bucket, "artifacts/recipes.yaml", "recipes: {}\n")

	i := c.launch(group, deployment)
	address := loopback()
	m := c.machine("host", address, aws.Administrator, identity(i, address))
	m.metadata.Set("tags/instance/Host", "gpu-1")
	m.metadata.Set("tags/instance/Name", group)
	m.metadata.Set(imds.Target, "Warmed:Stopped")
	m.metadata.Set("instance-id", "i-00000000000000000") // the emulator knows of no spares
	unit, err := os.ReadFile(filepath.Join(testenv.Root(t), "infra/install/systemd/reveille-runner.service"))
	if err != nil {
		t.Fatal(err)
	}
	userData := render(t, "modules/runner-pool/templates/user_data.sh.tftpl", map[string]any{
		"artifacts_uri": "s3://" + bucket + "/artifacts", "engines_uri": "s3://" + bucket + "/engines/gpu", "launch_hook": "runner-ready",
		"log_group": "runner", "port": 8090, "runner_secret_id": "runner-secret", "unit": string(unit),
		"secrets": map[string]string{"HF_TOKEN": "token"},
		"settings": map[string]string{
			"REVEILLE_DEVICES": "cpu,gpu", "REVEILLE_INSTANCE": "aws", "REVEILLE_LAUNCH_HOOK": "runner-ready",
			"REVEILLE_RECIPES": "/etc/reveille/recipes.yaml", "REVEILLE_NPU_SEATS": "llm=1 embedding=1", "REVEILLE_POOL": deployment, "REVEILLE_REDIS_URL": "redis://" + server + "/0",
		},
	})
	for i := range 10 {
		m.cutShort(userData, 1+25*i/9)
	}
	m.firstBoot(userData)
	if _, err := os.Stat(m.path("/etc/reveille/installed")); err != nil {
		t.Error("not installed after user data was cut short ten times:", err)
	}
	if len(m.services) > 0 || c.lifecycle(group) != "Pending:Wait" {
		t.Errorf("a spare runs %v, its group's machine is %s", m.services, c.lifecycle(group))
	}
	for _, file := range []string{"bin/runner", "bin/" + library, "engines/tools/engine"} {
		if info, err := os.Stat(m.path("/opt/reveille/" + file)); err != nil || info.Mode().Perm()&0o555 != 0o555 {
			t.Errorf("%s: %v, %v; want one that everybody may read and run", file, info, err)
		}
	}
	m.off()

	m.metadata.Set("instance-id", *i.InstanceId)
	m.metadata.Set(imds.Target, "InService")
	m.boot()
	kit.Within(t, patience, "the host registers", func() bool {
		return rdb.HGet(t.Context(), "rv:{"+deployment+"}:host:gpu-1", "addr").Val() == m.address+":8090"
	})
	kit.Within(t, patience, "the group's machine is in service", func() bool { return c.lifecycle(group) == "InService" })
	env, err := os.ReadFile(m.path("/run/reveille/host.env"))
	if err != nil || !strings.Contains(string(env), "\nHF_TOKEN=hf_of_the_test\n") {
		t.Errorf("the secret of the pool is not in\n%s %v", env, err)
	}
	m.off()

	program := m.path("/opt/reveille/bin/runner")
	before, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	m.boot()
	if after, err := os.Stat(program); err != nil || !os.SameFile(before, after) {
		t.Errorf("a runner that is the bucket's was fetched again: %v", err)
	}
	m.off()

	// The next release has no library, and its runner does not arrive as it was built.
	c.PutObject(bucket, "artifacts/SHA256SUMS", strings.Repeat("0", 64)+"  runner_linux_amd64\n")
	if err := rdb.SAdd(t.Context(), "rv:{"+deployment+"}:hosts", "gpu-1").Err(); err != nil { // as the gateway's catalog does
		t.Fatal(err)
	}
	if err := m.tryBoot(); err == nil || !strings.Contains(err.Error(), "runner_linux_amd64: its digest is not 0000") {
		t.Errorf("a runner with another digest: %v", err)
	}
	const told = "the download of the runner failed with status 1; see journalctl -u reveille-boot"
	if got := rdb.HMGet(t.Context(), "rv:{"+deployment+"}:host:gpu-1", "boot_state", "boot_error").Val(); len(got) != 2 || got[0] != "failed" || got[1] != told {
		t.Errorf("the pool was told %q of a boot that failed", got)
	}
	if after, err := os.Stat(program); err != nil || !os.SameFile(before, after) || len(m.services) > 0 {
		t.Errorf("a runner with another digest was taken: %v, %v", err, m.services)
	}
	c.PutObject(bucket, "artifacts/SHA256SUMS", fmt.Sprintf("%x  runner_linux_amd64\n", digest(t, program)))
	m.boot()
	if _, err := os.Stat(m.path("/opt/reveille/bin/" + library)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the library of the last release is still there: %v", err)
	}
	m.off()

	// The engine is taken out of the bucket, and another build comes while the host runs.
	objects := s3.NewFromConfig(c.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	if _, err := objects.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: sdk.String(bucket), Key: sdk.String("engines/gpu/tools/engine")}); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Del(t.Context(), "rv:{"+deployment+"}:host:gpu-1").Err(); err != nil {
		t.Fatal(err)
	}
	put := make(chan struct{})
	go func() {
		defer close(put)
		kit.Within(t, patience, "the host registers without an engine", func() bool {
			return rdb.HGet(t.Context(), "rv:{"+deployment+"}:host:gpu-1", "addr").Val() != ""
		})
		c.PutObject(bucket, "engines/gpu/llama-server", "#!/bin/sh\n")
	}()
	m.boot() // ends when it has an engine
	<-put
	engines := m.path("/opt/reveille/engines")
	if _, err := os.Stat(filepath.Join(engines, "tools/engine")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the engine that was taken out of the bucket is still there: %v", err)
	}
	if info, err := os.Stat(filepath.Join(engines, "llama-server")); err != nil || info.Mode().Perm()&0o555 != 0o555 {
		t.Errorf("the new engine: %v, %v", info, err)
	}
	m.off()
}

// launch makes a group of a project, with the runner's hook and a machine in it, which waits.
func (c *cloud) launch(group, project string) types.Instance {
	c.t.Helper()
	name, image, version, zero, one := "host", aws.Image, "$Latest", int32(0), int32(1)
	_, err := c.hosts.CreateLaunchTemplate(c.t.Context(), &ec2.CreateLaunchTemplateInput{
		LaunchTemplateName: &name, LaunchTemplateData: &types.RequestLaunchTemplateData{ImageId: &image, InstanceType: types.InstanceTypeG5Xlarge},
	})
	if err == nil {
		_, err = c.groups.CreateAutoScalingGroup(c.t.Context(), &autoscaling.CreateAutoScalingGroupInput{
			AutoScalingGroupName: &group, MinSize: &zero, MaxSize: &one, DesiredCapacity: &one, AvailabilityZones: []string{aws.Region + "a"},
			LaunchTemplate: &asgtypes.LaunchTemplateSpecification{LaunchTemplateName: &name, Version: &version},
			LifecycleHookSpecificationList: []asgtypes.LifecycleHookSpecification{
				{LifecycleHookName: sdk.String("runner-ready"), LifecycleTransition: sdk.String("autoscaling:EC2_INSTANCE_LAUNCHING")},
			},
			Tags: []asgtypes.Tag{
				{Key: sdk.String("Host"), Value: &group, PropagateAtLaunch: sdk.Bool(true)},
				{Key: sdk.String("Project"), Value: &project, PropagateAtLaunch: sdk.Bool(true)},
			},
		})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return c.running(group)
}

// abandon deletes a group that launch made, and its machine.
func (c *cloud) abandon(group string) {
	c.t.Helper()
	_, err := c.groups.DeleteAutoScalingGroup(c.t.Context(), &autoscaling.DeleteAutoScalingGroupInput{AutoScalingGroupName: &group, ForceDelete: sdk.Bool(true)})
	if err == nil {
		_, err = c.hosts.DeleteLaunchTemplate(c.t.Context(), &ec2.DeleteLaunchTemplateInput{LaunchTemplateName: sdk.String("host")})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	kit.Within(c.t, patience, group+" is gone", func() bool { return c.instance("Host", group) == nil })
}
