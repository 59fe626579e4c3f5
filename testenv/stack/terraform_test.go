package stack

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/aws"
)

const commandTime = 15 * time.Minute // longest that one terraform command may take

// terraform runs commands on the stack, with its state in the test's folder.
type terraform struct {
	t     *testing.T
	root  string // the module's
	state string
	env   []string
	vars  []string // flags that plan, apply and destroy get
}

func newTerraform(t *testing.T, emulator string) *terraform {
	t.Helper()
	scratch := t.TempDir()
	tf := &terraform{t: t, root: testenv.Root(t), state: filepath.Join(scratch, "stack.tfstate"), env: append(os.Environ(),
		"AWS_ACCESS_KEY_ID=test", "AWS_EC2_METADATA_DISABLED=true", "AWS_ENDPOINT_URL="+emulator, "AWS_REGION="+aws.Region, "AWS_SECRET_ACCESS_KEY=test",
		"TF_DATA_DIR="+filepath.Join(scratch, "data"), "TF_IN_AUTOMATION=1",
	)}
	tf.run(0, "init", "-backend=false", "-input=false", "-lockfile=readonly")
	return tf
}

// run runs one command and returns its standard output and exit status; a status above 0 that is not the accepted one
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

// change runs plan, apply or destroy with the variables of an example, those of the emulator over them, and the test's.
func (tf *terraform) change(accept int, example string, args ...string) (string, int) {
	tf.t.Helper()
	args = append(args, "-input=false", "-no-color", "-parallelism=20", "-state="+tf.state,
		"-var-file=examples/"+example+"/terraform.tfvars", "-var-file=tests/emulator.tfvars")
	return tf.run(accept, append(args, tf.vars...)...)
}

// set gives variables another value, NAME=VALUE.
func (tf *terraform) set(vars ...string) {
	for _, v := range vars {
		tf.vars = append(tf.vars, "-var="+v)
	}
}

// unchanged fails the test if a plan would change anything.
func (tf *terraform) unchanged(example string) {
	tf.t.Helper()
	if plan, status := tf.change(2, example, "plan", "-detailed-exitcode"); status != 0 {
		tf.t.Errorf("a second plan is not empty:\n%s", plan)
	}
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
