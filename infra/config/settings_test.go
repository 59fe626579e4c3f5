package config_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	gateway "reveille/gateway/app"
	"reveille/gateway/cli"
	"reveille/infra/config"
	runner "reveille/runner/app"
	warmer "reveille/warmer/app"
)

func parse(settings any, args ...string) (*config.Command, error) {
	return config.Parse(settings, "test", "", args, config.Vars{"runner_addr": "127.0.0.1:0"}, config.IntakeVars(false))
}

// Each setting of each program takes its value from the variable that --help names.
func TestEverySettingHasItsVariable(t *testing.T) {
	for _, settings := range []any{
		&gateway.RunSettings{}, &gateway.ServeSettings{}, &runner.Settings{}, &warmer.Settings{},
		&cli.Check{}, &cli.Health{}, &cli.Init{}, &cli.KeyAdd{}, &cli.Load{}, &cli.Logs{}, &cli.MM{}, &cli.PS{}, &cli.Top{}, &cli.Unload{}, &cli.Wake{},
	} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%T", settings), "*", ""), func(t *testing.T) {
			c, err := parse(settings, args(settings)...)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for _, f := range c.Flags {
				value, kind := "7", reflect.TypeOf(f.Value()).Kind()
				_, isDuration := f.Value().(time.Duration)
				switch {
				case f.Enum != nil:
					value = f.Enum[len(f.Enum)-1]
				case kind == reflect.Bool:
					value = fmt.Sprint(f.Value() == false)
				case isDuration:
					value = "7s"
				case kind == reflect.Slice:
					value = "a,b"
				}
				variable := "REVEILLE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
				if f.Variable() != variable {
					t.Errorf("--%s is %s", f.Name, f.Variable())
				}
				t.Setenv(variable, value)
				want[f.Name] = strings.ReplaceAll(value, ",", " ")
			}
			if c, err = parse(settings, args(settings)...); err != nil {
				t.Fatal(err)
			}
			for _, f := range c.Flags {
				if got := strings.Trim(fmt.Sprint(f.Value()), "[]"); got != want[f.Name] {
					t.Errorf("--%s is %q, want %q", f.Name, got, want[f.Name])
				}
			}
		})
	}
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
	if _, err := config.Parse(&s, "runner", "", []string{"-b", "512"}, config.Vars{"runner_addr": "127.0.0.1:0"}); err != nil || s.NBatch != 512 {
		t.Errorf("%d %v", s.NBatch, err)
	}
}

// args are the arguments that a command must have.
func args(settings any) []string {
	switch settings.(type) {
	case *cli.Load, *cli.Wake:
		return []string{"name"}
	}
	return nil
}
