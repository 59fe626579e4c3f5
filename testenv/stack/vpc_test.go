package stack

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/aws"
)

// TestGiven applies examples/vpc to a network, a key, a Redis and a permissions boundary that are there already. All that is
// made is in the network, encrypted by the key and bound; nothing is made beside it. The roles reach what the key encrypts,
// under a boundary that allows no more than the policies name. What was given outlives destroy.
func TestGiven(t *testing.T) {
	if !*whole {
		t.Skip("run by make tf-apply-check")
	}
	c := newCloud(t, aws.Spec{Settle: 100 * time.Millisecond})
	var given struct {
		Key      string   `json:"kms_key_arn"`
		Boundary string   `json:"permissions_boundary"`
		Secret   string   `json:"redis_secret_arn"`
		Subnets  []string `json:"subnet_ids"`
		VPC      string   `json:"vpc_id"`
	}
	text := c.python("given.py", boundary(t))
	values := map[string]any{}
	for _, into := range []any{&given, &values} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	values["tags"] = map[string]string{"Team": "ml"}
	tf := newTerraform(t, c.URL, "vpc", map[string]any{
		"dist_dir": filepath.Join(testenv.Root(t), "terraform", "tests", "fixtures"),
		"runner_pools": map[string]any{
			"gpu": map[string]any{"accelerator": "gpu", "instance_type": "g5.xlarge", "image": aws.Image},
			"npu": map[string]any{"accelerator": "npu", "instance_type": "inf2.xlarge", "image": aws.Image, "strategy": "warm_pool"},
		},
	})
	for name, v := range values {
		one, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		tf.env = append(tf.env, fmt.Sprintf("TF_VAR_%s=%s", name, strings.Trim(string(one), `"`)))
	}
	tf.change(0, "apply", "-auto-approve")
	expectOutputs(t, tf.outputs(), map[string]string{
		"gateway_url": "https://", "redis_cli": "redis-cli --tls -h redis.example -p 6380", "redis_endpoint": "redis.example:6380",
	})
	tf.unchanged()

	for _, made := range c.left() {
		kind, _, _ := strings.Cut(made, " reveille")
		for _, not := range []string{"address", "network", "subnet", "route table", "internet gateway", "egress-only gateway", "endpoint", "serverless cache", "cache node"} {
			if strings.HasPrefix(kind, not+" ") || kind == not {
				t.Errorf("made beside what was given: %s", made)
			}
		}
	}
	var placed struct {
		Keys, Bounds, Networks map[string]string
		Subnets, Teams         map[string][]string
	}
	if err := json.Unmarshal([]byte(c.python("placed.py")), &placed); err != nil {
		t.Fatal(err)
	}
	same := func(what, want string, got map[string]string, least int) {
		t.Helper()
		if len(got) < least {
			t.Errorf("%s: %v, want at least %d", what, got, least)
		}
		for name, is := range got {
			if is != want {
				t.Errorf("%s of %s: %q, want %q", what, name, is, want)
			}
		}
	}
	same("key", given.Key, placed.Keys, 10) // 2 disks, 2 templates, a bucket, 2 secrets, 3 log groups
	same("boundary", given.Boundary, placed.Bounds, 3)
	same("network", given.VPC, placed.Networks, 3)
	for name, in := range placed.Subnets {
		if len(in) == 0 || slices.ContainsFunc(in, func(s string) bool { return !slices.Contains(given.Subnets, s) }) {
			t.Errorf("%s is in %q, want %q", name, in, given.Subnets)
		}
	}
	for name, teams := range placed.Teams {
		if !slices.Equal(teams, []string{"ml"}) {
			t.Errorf("tags Team of %s: %q", name, teams)
		}
	}
	if len(placed.Subnets) != 4 || len(placed.Teams) != 2 { // gateway, host, group, warmer
		t.Errorf("in subnets: %v; with tags: %v", placed.Subnets, placed.Teams)
	}
	c.keyHolds(given.Secret)

	tf.change(0, "destroy", "-auto-approve")
	if rest := c.left(); len(rest) > 0 {
		t.Errorf("destroy left: %q", rest)
	}
	if err := c.as(aws.Administrator).secretAt(given.Secret); err != nil {
		t.Error("destroy took the given secret:", err)
	}
}

// boundary is a policy that allows the actions of the roles' policies on whatever there is, and nothing else.
func boundary(t *testing.T) string {
	t.Helper()
	actions := map[string]bool{}
	for _, grants := range statements(t) {
		for grant := range grants {
			_, action, _ := strings.Cut(grant, " ")
			actions[action] = true
		}
	}
	text, err := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []any{
		map[string]any{"Effect": "Allow", "Action": slices.Sorted(maps.Keys(actions)), "Resource": "*"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keyHolds: the roles read and start what the key encrypts, by the statements that say so.
func (c *cloud) keyHolds(secret string) {
	c.t.Helper()
	gatewayID, gpu := *c.instance("Name", deployment+"-gateway").InstanceId, c.running("gpu-1")
	gateway, runner := c.as(c.InstanceRole(gatewayID)), c.as(c.InstanceRole(*gpu.InstanceId))
	warmer := c.as(c.FunctionRole(deployment + "-warmer"))
	bucket := deployment + "-models-123456789012-" + aws.Region
	for what, err := range map[string]error{
		"gateway reads the API keys":             gateway.secret("api-keys"),
		"gateway reads the catalogue":            gateway.get(bucket, "config/models.yaml"),
		"gateway reads the password of Redis":    gateway.secretAt(secret),
		"runner reads its secret":                runner.secret("runner-secret"),
		"runner reads its program":               runner.get(bucket, "artifacts/SHA256SUMS"),
		"runner reads the password of Redis":     runner.secretAt(secret),
		"warmer reads the password of Redis":     warmer.secretAt(secret),
		"gateway starts a host, which it may be": gateway.start(*gpu.InstanceId),
	} {
		if err != nil {
			c.t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"gateway terminates a host, beyond role and boundary": gateway.terminate(*gpu.InstanceId),
		"warmer reads the API keys":                           warmer.secret("api-keys"),
	} {
		if !denied(err) {
			c.t.Errorf("%s: %v, want a refusal", what, err)
		}
	}
	used := c.Grants()
	for _, grant := range []string{"gateway Key kms:Decrypt", "gateway KeyOfDisks kms:CreateGrant", "runner Key kms:Decrypt"} {
		role, rest, _ := strings.Cut(grant, " ")
		sid, action, _ := strings.Cut(rest, " ")
		if !slices.Contains(used, aws.Grant{Role: deployment + "-" + role + "-" + aws.Region, Statement: sid, Action: action}) {
			c.t.Errorf("no call needed the statement %s", grant)
		}
	}
}
