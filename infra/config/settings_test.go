package config_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	gateway "reveille/gateway/app"
	"reveille/gateway/cli"
	"reveille/infra/config"
	runner "reveille/runner/app"
	warmer "reveille/warmer/app"
)

func parse(settings any, args ...string) (*config.Command, error) {
	return config.Parse(settings, "test", "", args)
}

// others are values of flags that have few, and not their defaults.
var others = map[string]string{
	"evict": "cost", "instance": "aws", "log-format": "json", "loading": "reasoning", "log-level": "error", "runner-tls": "on",
	"sandbox": "off", "slot": "pod", "stream-errors": "event",
}

// Each setting of each program takes its value from the variable that --help names.
func TestEverySettingHasItsVariable(t *testing.T) {
	for _, settings := range []any{
		&gateway.RunSettings{}, &gateway.ServeSettings{}, &runner.Settings{}, &warmer.Settings{},
		&cli.Check{}, &cli.Health{}, &cli.Init{}, &cli.KeyAdd{}, &cli.Load{}, &cli.Logs{}, &cli.MM{}, &cli.PS{}, &cli.Unload{}, &cli.Wake{},
	} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%T", settings), "*", ""), func(t *testing.T) {
			c, err := parse(settings, args(settings)...)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			c.Flags.VisitAll(func(f *pflag.Flag) {
				if f.Name == "help" || f.Name == "version" {
					return
				}
				variable := "REVEILLE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
				if !strings.Contains(f.Usage, "($"+variable+")") {
					t.Errorf("--%s: %s", f.Name, f.Usage)
				}
				value := map[string]string{"bool": fmt.Sprint(f.DefValue == "false"), "duration": "7s", "stringSlice": "a,b"}[f.Value.Type()]
				value = cmp.Or(others[f.Name], value, "7")
				t.Setenv(variable, value)
				want[f.Name] = value
			})
			if c, err = parse(settings, args(settings)...); err != nil {
				t.Fatal(err)
			}
			c.Flags.VisitAll(func(f *pflag.Flag) {
				if got := strings.Trim(f.Value.String(), "[]"); got != want[f.Name] && want[f.Name] != "" {
					t.Errorf("--%s is %q, want %q", f.Name, got, want[f.Name])
				}
			})
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

// Wrong values of variables are refused together, and the error names each variable.
func TestWrongVariables(t *testing.T) {
	wrong := map[string]string{"REVEILLE_READ_TIMEOUT": "soon", "REVEILLE_CTX_SIZE": "many", "REVEILLE_LOG_LEVEL": "loud"}
	for name, value := range wrong {
		t.Setenv(name, value)
	}
	_, err := parse(&runner.Settings{})
	for name := range wrong {
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "field") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// -b is llama-server's word for --n-batch.
func TestShortFlags(t *testing.T) {
	var s runner.HostSettings
	if _, err := config.Parse(&s, "runner", "", []string{"-b", "512"}); err != nil || s.NBatch != 512 {
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
