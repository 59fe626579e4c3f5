package stack

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
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

// terraform runs commands on an example, a copy of which is in the test's folder with the stack and with its state.
type terraform struct {
	t      *testing.T
	root   string // the example's folder
	env    []string
	values map[string]any // that the stack gets over those of the example
}

// newTerraform copies an example for an emulator, with the values that every emulator needs and those of the test.
func newTerraform(t *testing.T, emulator, example string, values map[string]any) *terraform {
	t.Helper()
	scratch := t.TempDir()
	for _, folder := range []string{"terraform", filepath.Join("infra", "install", "systemd")} {
		if err := os.CopyFS(filepath.Join(scratch, folder), os.DirFS(filepath.Join(testenv.Root(t), folder))); err != nil {
			t.Fatal(err)
		}
	}
	lock := ".terraform.lock.hcl"
	tf := &terraform{t: t, root: filepath.Join(scratch, "terraform", "examples", example), env: append(os.Environ(),
		"AWS_ACCESS_KEY_ID=test", "AWS_EC2_METADATA_DISABLED=true", "AWS_ENDPOINT_URL="+emulator, "AWS_REGION="+aws.Region, "AWS_SECRET_ACCESS_KEY=test",
		"TF_DATA_DIR="+filepath.Join(scratch, "data"), "TF_IN_AUTOMATION=1",
		`TF_VAR_api_keys=["`+apiKey+` infer,manage"]`, "TF_VAR_runner_secret=0123456789abcdef0123456789abcdef",
		"TF_VAR_alarm_email=ops@example.com",
	), values: map[string]any{
		"enable_bucket_tls_policy": false, // emulators refuse by it whatever its condition says
		"environment":              "local",
	}}
	if err := os.Link(filepath.Join(scratch, "terraform", lock), filepath.Join(tf.root, lock)); err != nil {
		t.Fatal(err)
	}
	tf.set(values)
	tf.run(0, "init", "-backend=false", "-input=false", "-lockfile=readonly")
	return tf
}

// set gives the stack other values, by a file that overrides the example.
// https://developer.hashicorp.com/terraform/language/files/override
func (tf *terraform) set(values map[string]any) {
	tf.t.Helper()
	maps.Copy(tf.values, values)
	text, err := json.Marshal(map[string]any{
		"module":   map[string]any{"reveille": tf.values},
		"provider": map[string]any{"aws": map[string]any{"s3_use_path_style": true}},
	})
	if err := errors.Join(err, os.WriteFile(filepath.Join(tf.root, "emulator_override.tf.json"), text, 0o600)); err != nil {
		tf.t.Fatal(err)
	}
}

// run runs one command and returns its standard output and exit status; a status above 0 that is not the accepted one
// fails the test.
func (tf *terraform) run(accept int, args ...string) (string, int) {
	tf.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(tf.t.Context(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "terraform", append([]string{"-chdir=" + tf.root}, args...)...)
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

// change runs plan, apply or destroy.
func (tf *terraform) change(accept int, args ...string) (string, int) {
	tf.t.Helper()
	return tf.run(accept, append(args, "-input=false", "-no-color", "-parallelism=20")...)
}

// unchanged fails the test if a plan would change anything.
func (tf *terraform) unchanged() {
	tf.t.Helper()
	if plan, status := tf.change(2, "plan", "-detailed-exitcode"); status != 0 {
		tf.t.Errorf("a second plan is not empty:\n%s", plan)
	}
}

func (tf *terraform) outputs() map[string]any {
	tf.t.Helper()
	text, _ := tf.run(0, "output", "-json")
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
