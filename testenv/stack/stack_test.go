package stack

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/aws"
)

var whole = flag.Bool("stack", false, "apply the stack on the AWS emulator; set by make tf-check, which says where providers come from")

// deployment is the prefix of all names: name and environment of tests/emulator.tfvars.
const deployment = "reveille-local"

const commandTime = 8 * time.Minute // longest that one terraform command may take

// terraform runs commands on the stack, with its state in the test's folder.
type terraform struct {
	t     *testing.T
	root  string // the module's
	state string
	env   []string
}

func newTerraform(t *testing.T, emulator string) *terraform {
	t.Helper()
	scratch := t.TempDir()
	return &terraform{t: t, root: testenv.Root(t), state: filepath.Join(scratch, "stack.tfstate"), env: append(os.Environ(),
		"AWS_ACCESS_KEY_ID=test", "AWS_EC2_METADATA_DISABLED=true", "AWS_ENDPOINT_URL="+emulator, "AWS_REGION="+aws.Region, "AWS_SECRET_ACCESS_KEY=test",
		"TF_DATA_DIR="+filepath.Join(scratch, "data"), "TF_IN_AUTOMATION=1",
	)}
}

// run runs one command and returns its standard output and exit status; a status above 0 that is not among those accepted
// fails the test.
func (tf *terraform) run(accept int, args ...string) (string, int) {
	tf.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(tf.t.Context(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "terraform", append([]string{"-chdir=" + filepath.Join(tf.root, "terraform")}, args...)...)
	cmd.Env = tf.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its provider and writes its state
	cmd.WaitDelay = time.Minute
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == accept {
		err = nil
	}
	if err != nil {
		tf.t.Fatalf("terraform %s: %v\n%s%s", args[0], err, out, errs.String())
	}
	tf.t.Logf("terraform %s: %.0f s", args[0], time.Since(began).Seconds())
	return string(out), cmd.ProcessState.ExitCode()
}

// change runs plan, apply or destroy with the variables of the emulator over those of an example.
func (tf *terraform) change(accept int, example string, args ...string) (string, int) {
	tf.t.Helper()
	return tf.run(accept, append(args, "-input=false", "-no-color", "-parallelism=20", "-state="+tf.state, "-var=dist_dir=tests/fixtures",
		"-var-file=examples/"+example+"/terraform.tfvars", "-var-file=tests/emulator.tfvars")...)
}

func (tf *terraform) outputs() map[string]any {
	tf.t.Helper()
	text, _ := tf.run(0, "output", "-json", "-state="+tf.state)
	var raw map[string]struct{ Value any }
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		tf.t.Fatal(err)
	}
	out := map[string]any{}
	for name, o := range raw {
		out[name] = o.Value
	}
	return out
}

// left lists what the emulator has of the deployment.
func left(t *testing.T, emulator string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), testenv.Python(t), "-B", filepath.Join("testdata", "left.py"), emulator, deployment).CombinedOutput()
	if err != nil {
		t.Fatalf("left.py: %v\n%s", err, out)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

// TestStack applies both examples' stack to an emulator: everything is made, a second plan changes nothing, and after
// destroy nothing is left.
func TestStack(t *testing.T) {
	if !*whole {
		t.Skip("run by make tf-check")
	}
	cloud := aws.Start(t, 100*time.Millisecond)
	tf := newTerraform(t, cloud.URL)
	tf.run(0, "init", "-backend=false", "-input=false", "-lockfile=readonly")

	if _, status := tf.change(2, "minimal", "plan", "-detailed-exitcode"); status != 2 {
		t.Error("examples/minimal plans nothing")
	}
	tf.change(0, "npu", "apply", "-auto-approve")
	out := tf.outputs()
	t.Log("gateway_url", out["gateway_url"], "redis_cli", out["redis_cli"])
	for name, want := range map[string]string{"gateway_url": "https://", "redis_cli": "redis-cli --tls -h ", "redis_endpoint": "127.0.0.1:", "model_bucket": deployment} {
		if got, _ := out[name].(string); !strings.HasPrefix(got, want) {
			t.Errorf("output %s = %q, want it to begin with %q", name, got, want)
		}
	}
	made := left(t, cloud.URL)
	if len(made) < 50 {
		t.Errorf("%d resources are seen through the API: %q", len(made), made)
	}
	if plan, status := tf.change(2, "npu", "plan", "-detailed-exitcode"); status != 0 {
		t.Errorf("a second plan is not empty:\n%s", plan)
	}
	tf.change(0, "npu", "destroy", "-auto-approve")
	if rest := left(t, cloud.URL); len(rest) > 0 {
		t.Errorf("destroy left: %q", rest)
	}
}
