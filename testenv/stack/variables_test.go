package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// wrong is a value that a variable's validation refuses, and the words of its message that say the fix.
type wrong struct {
	variable string
	value    any
	fix      string
}

// pool is a GPU pool with some fields of its own.
func pool(fields map[string]any) map[string]any {
	p := map[string]any{"accelerator": "gpu", "instance_type": "g6.xlarge"}
	maps.Copy(p, fields)
	return p
}

// refusals are plans of wrong values, at least one for every validation. A plan tells all that is wrong in one go, so
// values are apart only where they are of one variable or where one's validation looks at the other.
var refusals = [][]wrong{
	{
		{"alarm_email", "nobody", "must be one e-mail address such as ops@example.com, or null"},
		{"alarm_host_hours", 0, "must be more than 0; for no practical limit set 24 times the number of hosts"},
		{"alarm_queue_minutes", 1.5, "must be a whole number from 1 to 1440"},
		{"api_keys", []string{"short"}, "at least 16 characters or sha256: and 64 hex digits, then optionally its scopes and limits such as requests=60/m, loads=20/h, open=8 or waiting=100; make one with: gateway key"},
		{"api_keys_version", 0, "must be a whole number from 1 up"},
		{"cache_max_gb", 0, "must be a whole number from 1 to 5000"},
		{"cache_mode", "memcached", `must be "serverless" or "node"`},
		{"certificate_arn", "my certificate", `must be the ARN of an ACM certificate in this region when front is "nlb"; without one use front = "cloudfront"`},
		{"dist_dir", "nothing", "run make dist first, or set dist_dir to the folder that it wrote"},
		{"environment", "Prod!", "must be 2 to 10 lower-case letters or digits, such as prod"},
		{"exclude_zone_ids", []string{"us-east-1e"}, "must be ids such as use1-az3"},
		{"gateway_instance_type", "t3.nano", "must be an arm64 type such as t4g.nano or c7g.medium"},
		{"gateway_port", 80, "must be a TCP port from 1024 to 65535"},
		{"hold_seconds", 0, "must be from 1 to 3600"},
		{"host_idle_minutes", 0, "must be at least 1"},
		{"host_min_up_minutes", -1, "must not be negative"},
		{"kms_key_arn", "alias/mine", "must be the ARN of a key"},
		{"log_retention_days", 2, "must be one of 1, 3, 5, 7, 14, 30"},
		{"model_idle_minutes", 0, "must be at least 1"},
		{"models_file", "nothing.yaml", "must be a YAML file with a models section; gateway check FILE says more"},
		{"name", "Reveille_", "must be 2 to 16 lower-case letters, digits and hyphens"},
		{"permissions_boundary", "mine", "must be the ARN of a policy"},
		{"redis_passwords", []string{"short"}, "must be at most 2 passwords of 16 to 128 visible characters of ASCII; make one with: openssl rand -hex 32"},
		{"runner_pools", map[string]any{
			"GPU 1":       pool(nil),
			"accelerator": pool(map[string]any{"accelerator": "tpu"}),
			"environment": pool(map[string]any{"environment": map[string]string{"lower": "x"}}),
			"secrets":     pool(map[string]any{"secrets": map[string]string{"HF_TOKEN": "hf_123"}}),
			"engine":      pool(map[string]any{"engine": "../models"}),
			"disk":        pool(map[string]any{"disk_gb": 8, "disk_throughput": 2000}),
			"hosts":       pool(map[string]any{"hosts": 0}),
			"images":      pool(map[string]any{"image": "ami-1", "image_parameter": "/p"}),
			"port":        pool(map[string]any{"port": 80}),
			"spot":        pool(map[string]any{"spot": true}),
			"share":       pool(map[string]any{"on_demand_base": 1}),
			"percent":     pool(map[string]any{"on_demand_percent": 101}),
			"bothtypes":   pool(map[string]any{"instance_types": []string{"g6.xlarge"}}),
			"twotypes":    pool(map[string]any{"instance_type": nil, "instance_types": []string{"g6.xlarge", "g5.xlarge"}}),
			"maxsize":     pool(map[string]any{"max_size": 2}),
			"strategy":    pool(map[string]any{"strategy": "frozen"}),
			"type":        pool(map[string]any{"instance_type": "t3.large"}),
			"typenpu":     pool(map[string]any{"accelerator": "npu"}),
		}, "needs at least one pool, each named with 1 to 12 lower-case letters and digits, beginning with a letter"},
		{"runner_pools", nil, `accelerator must be "gpu" or "npu"`},
		{"runner_pools", nil, "an npu pool needs an instance_type of inf2, trn1 or trn2, such as inf2.xlarge"},
		{"runner_pools", nil, "a gpu pool needs an instance_type with an x86_64 processor and a GPU that the image's driver knows, Nvidia's since Turing, such as g6.xlarge"},
		{"runner_pools", nil, `strategy must be "stopped", "warm_pool" or "asg"`},
		{"runner_pools", nil, `spot needs strategy = "asg"`},
		{"runner_pools", nil, "set instance_type or instance_types, one of them"},
		{"runner_pools", nil, `instance_types must be up to 40 different types, and more than one needs strategy = "asg"`},
		{"runner_pools", nil, "on_demand_percent one from 0 to 100"},
		{"runner_pools", nil, "they need spot = true and max_size"},
		{"runner_pools", nil, "environment must be variables in capital letters"},
		{"runner_pools", nil, "secrets must be variables in capital letters, each with the ARN of a secret"},
		{"runner_pools", nil, "engine must be the name of one folder below engines/"},
		{"runner_pools", nil, "hosts must be a whole number from 1 to 20"},
		{"runner_pools", nil, `max_size must be a whole number from 2 to 100, in place of hosts, and needs strategy = "asg"`},
		{"runner_pools", nil, "disk_gb must be from 50 to 16384"},
		{"runner_pools", nil, "disk_throughput must be a whole number of MiB/s from 125 to 1000"},
		{"runner_pools", nil, "port must be a TCP port from 1024 to 65535"},
		{"runner_pools", nil, "set image or image_parameter, not both"},
		{"runner_secret", "short", "must be at least 32 letters, digits and + / = _ -; for example from: openssl rand -hex 32"},
		{"runner_secret_version", 0.5, "must be a whole number from 1 up"},
		{"subnet_ids", []string{"subnet-a"}, "must be 2 or 3 subnets in different zones"},
		{"tags", map[string]string{"Name": "mine"}, "must not hold Environment, Host, ManagedBy, Name or Project"},
		{"vpc_cidr", "10.0.0.0/24", "must be an IPv4 network from /16 to /20, such as 10.42.0.0/16"},
		{"warmer_minutes", 0, "must be a whole number from 1 to 60"},
		{"zones", 1, "must be 2 or 3"},
	},
	{
		{"api_keys", []string{}, "needs at least one key"},
		{"monthly_budget", 100, "must be more than 0, and needs alarm_email"},
		{"redis_secret_arn", "mine", "must be the ARN of a secret, and needs redis_url"},
		{"front", "none", "set gateway_allowed_cidrs to your own networks"},
		{"models_file", "variables.tf", "must be a YAML file with a models section"},
		{"runner_pools", map[string]any{}, "needs at least one pool"},
		{"runner_secret", "with spaces, which is long enough otherwise", "for example from: openssl rand -hex 32"},
		{"vpc_cidr", "fd00::/16", "must be an IPv4 network"},
	},
	{
		{"front", "nlb", ""},
		{"certificate_arn", nil, "without one use front"},
		{"redis_url", "redis.example", "must be such as rediss://HOST:6379/0"},
		{"runner_pools", map[string]any{"arm": pool(map[string]any{"instance_type": "g5g.xlarge"})}, "a gpu pool needs"},
	},
	{
		{"tags", map[string]string{"aws:mine": "x"}, "no name may begin with aws:"},
		{"vpc_id", "vpc-a", "go together: set both, or neither"},
		{"gateway_allowed_cidrs", []string{}, "at least one"},
	},
	{
		{"api_keys", []string{"a-key-for-the-tests infer open=8", "a-key-for-the-tests infer open=8 requests=60"}, "needs at least one key"},
		{"redis_passwords", []string{"0123456789abcdef"}, ""},
		{"redis_url", "rediss://redis.example:6379/0", "put its user and password into redis_secret_arn"},
		{"front", "alb", `must be "cloudfront", "nlb" or "none"`},
	},
	{
		{"api_keys", []string{"a-key-for-the-tests open=0 Ada"}, "needs at least one key"},
		{"gateway_allowed_cidrs", []string{"here"}, "must be IPv4 networks such as 192.0.2.0/24, at least one"},
	},
}

var (
	validation = regexp.MustCompile(`(?m)^  validation \{$`)
	ruleAt     = regexp.MustCompile(`validation rule at\s+variables\.tf:(\d+),`)
	spaces     = regexp.MustCompile(`\s+`)
)

// TestWrongValues gives every variable values that it refuses: each validation has its turn, and each message names its
// variable and says the fix. The variables are planned alone, which asks no provider.
func TestWrongValues(t *testing.T) {
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Skip("terraform is not installed")
	}
	text := read(t, "terraform", "variables.tf")
	fired := map[int]bool{} // by the line of the validation
	for _, at := range validation.FindAllStringIndex(text, -1) {
		fired[1+strings.Count(text[:at[0]], "\n")] = false
	}
	for i, values := range refusals {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			told := planVariables(t, text, values)
			for line := range told {
				if _, ok := fired[line]; !ok {
					t.Errorf("a message of line %d, where no validation is: %s", line, told[line])
				}
				fired[line] = true
			}
			for _, w := range values {
				about := slices.DeleteFunc(slices.Sorted(maps.Values(told)), func(m string) bool { return !strings.HasPrefix(m, w.variable) })
				if w.fix != "" && !slices.ContainsFunc(about, func(m string) bool { return strings.Contains(m, w.fix) }) {
					t.Errorf("%s = %v: no message says %q, but: %q", w.variable, w.value, w.fix, about)
				}
			}
		})
	}
	for _, line := range slices.Sorted(maps.Keys(fired)) {
		if !fired[line] {
			t.Errorf("variables.tf:%d: no value of this test is refused by this validation", line)
		}
	}
}

// planVariables plans a module of the variables alone with some values, which must be refused, and returns the messages
// by the line of the validation that gave them.
func planVariables(t *testing.T, variables string, values []wrong) map[int]string {
	t.Helper()
	given := map[string]any{"api_keys": []string{"a-key-for-the-tests", "a-key-for-the-tests-2 infer requests=60/m loads=20/h open=8 waiting=100 Ada", "a-key-for-the-tests-3 open=8 team=a"}, "runner_secret": strings.Repeat("0", 32)}
	for _, w := range values {
		if _, there := given[w.variable]; !there || w.value != nil {
			given[w.variable] = w.value
		}
	}
	dir := t.TempDir()
	text, err := json.Marshal(given)
	if err := errors.Join(err,
		os.WriteFile(filepath.Join(dir, "variables.tf"), []byte(variables), 0o600),
		os.WriteFile(filepath.Join(dir, "wrong.auto.tfvars.json"), text, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "terraform", "-chdir="+dir, "plan", "-json", "-input=false", "-lock=false")
	cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_DATA_DIR="+filepath.Join(dir, ".terraform"))
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("nothing was refused:\n%s", out)
	}
	told := map[int]string{}
	for line := range strings.Lines(string(out)) {
		var event struct {
			Type       string
			Diagnostic struct{ Summary, Detail string }
		}
		if json.Unmarshal([]byte(line), &event) != nil || event.Type != "diagnostic" {
			continue
		}
		at := ruleAt.FindStringSubmatch(event.Diagnostic.Detail)
		if at == nil {
			t.Errorf("%s: %s", event.Diagnostic.Summary, event.Diagnostic.Detail)
			continue
		}
		number, _ := strconv.Atoi(at[1]) // digits
		told[number] = spaces.ReplaceAllString(event.Diagnostic.Detail, " ")
	}
	return told
}
