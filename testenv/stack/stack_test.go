package stack

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/aws"
)

var (
	minimal = flag.Bool("minimal", false, "apply examples/minimal on the AWS emulator; set by terraform/check.sh")
	whole   = flag.Bool("stack", false, "apply the stack on the AWS emulator; set by terraform/check.sh, which says where providers come from")
)

// TestStack applies the stack to an emulator and lives with it. First as examples/npu says: everything is made, and a
// second plan changes nothing. Then the cache is a serverless one, which is a Redis Cluster with TLS here, and the
// gateway's instance, hosts and warmer work as they were made. After destroy nothing is left. Each step goes on from the one before.
func TestStack(t *testing.T) {
	if !*whole {
		t.Skip("run by make tf-apply-check")
	}
	cluster := testenv.StartRedisCluster(t)
	c := newCloud(t, aws.Spec{Settle: 100 * time.Millisecond, Serverless: cluster.Addrs[0]})
	s := &story{
		t: t, cloud: c, cluster: cluster, rdb: cluster.Client(t), port: testenv.FreePort(t),
		dist: dist(t, "gateway_linux_arm64", "runner_linux_amd64", "warmer.zip"),
	}
	tf := newTerraform(t, c.URL, "npu", map[string]any{
		"dist_dir": s.dist, "models_file": filepath.Join(testenv.Root(t), "testenv", "stack", "testdata", "models.yaml"),
		"gateway_port": s.port, "host_idle_minutes": 1, "host_min_up_minutes": 0,
		"runner_pools": map[string]any{
			"gpu":  map[string]any{"accelerator": "gpu", "instance_type": "g5.xlarge", "image": aws.Image, "price": 1},
			"npu":  map[string]any{"accelerator": "npu", "instance_type": "inf2.xlarge", "image": aws.Image, "npu_seats": "llm=1 embedding=1", "strategy": "warm_pool"},
			"pair": map[string]any{"accelerator": "gpu", "instance_type": "g5.xlarge", "image": aws.Image, "strategy": "asg", "max_size": 2},
		},
	})

	tf.change(0, "apply", "-auto-approve")
	expectOutputs(t, tf.outputs(), map[string]string{
		"gateway_url": "https://", "redis_cli": "redis-cli --tls -h ", "redis_endpoint": "127.0.0.1:6379", "model_bucket": deployment,
	})
	if made := c.left(); len(made) < 50 {
		t.Errorf("%d resources are seen through the API: %q", len(made), made)
	}
	tf.unchanged()

	// The host's disk has the old cache's address: README, "Upgrade".
	tf.set(map[string]any{"cache_mode": "serverless"})
	tf.change(0, "apply", "-auto-approve", `-replace=module.reveille.module.runner_pool["gpu"].aws_instance.this["gpu-1"]`)
	out := tf.outputs()
	expectOutputs(t, out, map[string]string{"redis_cli": "redis-cli --tls -c -h 127.0.0.1 ", "redis_endpoint": cluster.Addrs[0]})
	bucket := out["model_bucket"].(string)
	s.fill(bucket)
	s.gatewayStarts()
	s.hostInstalls()
	s.hostWakes()
	s.groupWakes()
	s.pairWakes()
	tf.unchanged() // whatever is awake
	s.slotSleeps()
	s.hostsSleep()
	s.rolesHold(bucket)
	s.grantsUsed()

	s.gateway.off()
	tf.change(0, "destroy", "-auto-approve")
	if rest := c.left(); len(rest) > 0 {
		t.Errorf("destroy left: %q", rest)
	}
}

// expectOutputs holds outputs against what they must begin with.
func expectOutputs(t *testing.T, out map[string]any, want map[string]string) {
	t.Helper()
	for name, begin := range want {
		if got, _ := out[name].(string); !strings.HasPrefix(got, begin) {
			t.Errorf("output %s = %q, want it to begin with %q", name, got, begin)
		}
	}
}

// TestMinimal applies examples/minimal to an emulator, with a group of several instance types, and destroys it again where
// there is time.
func TestMinimal(t *testing.T) {
	if !*minimal && !*whole {
		t.Skip("run by make tf-check")
	}
	c := newCloud(t, aws.Spec{Settle: 100 * time.Millisecond})
	fixtures := filepath.Join(testenv.Root(t), "terraform", "tests", "fixtures")
	tf := newTerraform(t, c.URL, "minimal", map[string]any{"dist_dir": fixtures, "runner_pools": map[string]any{
		"gpu": map[string]any{"accelerator": "gpu", "instance_type": "g5.xlarge", "image": aws.Image},
		"mix": map[string]any{
			"accelerator": "gpu", "instance_types": []string{"g5.xlarge", "g4dn.xlarge"}, "image": aws.Image,
			"strategy": "asg", "max_size": 4, "spot": true, "on_demand_base": 1,
		},
	}})
	tf.change(0, "apply", "-auto-approve")
	tf.unchanged()
	expectOutputs(t, tf.outputs(), map[string]string{"gateway_url": "https://", "redis_cli": "redis-cli --tls -c -h ", "model_bucket": deployment})
	if c.instance("Host", "gpu-1") == nil || c.instance("Name", deployment+"-gateway") == nil {
		t.Error("host and gateway are not both there")
	}
	mix := c.group(deployment + "-mix")
	if p := mix.MixedInstancesPolicy; p == nil || len(p.LaunchTemplate.Overrides) != 2 || *p.InstancesDistribution.OnDemandBaseCapacity != 1 ||
		*p.InstancesDistribution.OnDemandPercentageAboveBaseCapacity != 0 || *mix.MaxSize != 4 {
		t.Errorf("the group of several instance types: %+v", mix)
	}
	if !*whole {
		return
	}
	tf.change(0, "destroy", "-auto-approve")
	if rest := c.left(); len(rest) > 0 {
		t.Errorf("destroy left: %q", rest)
	}
}
