package config_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	gateway "reveille/gateway/app"
	"reveille/gateway/cli"
	"reveille/infra/config"
	runner "reveille/runner/app"
	warmer "reveille/warmer/app"
)

func parse(settings any, args ...string) (*kong.Context, error) {
	return config.Parse(settings, "test", "", args, kong.Vars{"runner_addr": "127.0.0.1:0"}, config.IntakeVars(false))
}

// Each setting of each program takes its value from the variable that --help names.
func TestEverySettingHasItsVariable(t *testing.T) {
	for _, settings := range []any{
		&gateway.RunSettings{}, &gateway.ServeSettings{}, &gateway.LambdaSettings{}, &runner.Settings{}, &warmer.Settings{}, &cli.Remote{},
	} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%T", settings), "*", ""), func(t *testing.T) {
			c, err := parse(settings)
			if err != nil {
				t.Fatal(err)
			}
			help := usage(t, c)
			want := map[string]string{}
			for _, f := range c.Flags() {
				if f.Name == "help" || f.Name == "version" || f.Name == "man" {
					continue
				}
				value := "7"
				switch {
				case f.Enum != "":
					value = f.EnumSlice()[len(f.EnumSlice())-1]
				case f.Target.Kind() == reflect.Bool:
					value = fmt.Sprint(!f.Target.Bool())
				case f.Target.Type().String() == "time.Duration":
					value = "7s"
				case f.Target.Kind() == reflect.Slice:
					value = "a,b"
				}
				variable := "REVEILLE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
				if !strings.Contains(help, "$"+variable) {
					t.Errorf("--%s: help does not name %s", f.Name, variable)
				}
				t.Setenv(variable, value)
				want[f.Name] = strings.ReplaceAll(value, ",", " ")
			}
			if c, err = parse(settings); err != nil {
				t.Fatal(err)
			}
			for _, f := range c.Flags() {
				if got := strings.Trim(fmt.Sprint(f.Target.Interface()), "[]"); f.Name != "help" && f.Name != "version" && f.Name != "man" && got != want[f.Name] {
					t.Errorf("--%s is %q, want %q", f.Name, got, want[f.Name])
				}
			}
		})
	}
}

func usage(t *testing.T, c *kong.Context) string {
	t.Helper()
	var out strings.Builder
	c.Kong.Stdout = &out
	if err := c.PrintUsage(false); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The command line goes before the environment, the environment before the defaults; an empty variable is none.
func TestPrecedence(t *testing.T) {
	t.Setenv("REVEILLE_POOL", "fromenv")
	t.Setenv("REVEILLE_LOG_LEVEL", "")
	t.Setenv("HF_TOKEN", "hub")
	var s runner.Settings
	if _, err := parse(&s); err != nil || s.Pool != "fromenv" || s.LogLevel != "info" || s.HFToken != "hub" {
		t.Errorf("%q %q %q %v", s.Pool, s.LogLevel, s.HFToken, err)
	}
	t.Setenv("REVEILLE_HF_TOKEN", "ours")
	if _, err := parse(&s, "--pool", "flag"); err != nil || s.Pool != "flag" || s.HFToken != "ours" {
		t.Errorf("%q %q %v", s.Pool, s.HFToken, err)
	}
	if _, err := parse(&s, "--pool=flag", "--hf-token="); err != nil || s.HFToken != "" {
		t.Errorf("%q %v", s.HFToken, err)
	}
}

// A wrong value of a variable is refused as a flag's would be, and the error names the variable or the setting.
func TestWrongVariables(t *testing.T) {
	for name, value := range map[string]string{"REVEILLE_READ_TIMEOUT": "soon", "REVEILLE_CTX_SIZE": "many", "REVEILLE_LOG_LEVEL": "loud"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "REVEILLE_"), "_", "-"))
			if _, err := parse(&runner.Settings{}); err == nil || !strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), flag) || strings.Contains(err.Error(), "field") {
				t.Error(err)
			}
		})
	}
}

// -b is llama-server's word for --n-batch.
func TestShortFlags(t *testing.T) {
	var s runner.HostSettings
	if _, err := config.Parse(&s, "runner", "", []string{"-b", "512"}, kong.Vars{"runner_addr": "127.0.0.1:0"}); err != nil || s.NBatch != 512 {
		t.Errorf("%d %v", s.NBatch, err)
	}
}
