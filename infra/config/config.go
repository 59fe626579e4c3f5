// Package config holds the settings that all programs share, as kong flag groups: a flag's name is the setting's name,
// the same setting is read from the environment as REVEILLE_ and the upper-snake flag, and flags go first.
package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/alecthomas/kong"
)

// EnvPrefix begins the name of every environment variable that is read.
const EnvPrefix = "REVEILLE"

// Redis says where the pool's state is.
type Redis struct {
	RedisURL string `help:"Redis of the pool: redis://, rediss:// or unix://; several hosts with commas, or ?cluster=true, are a Cluster; ?master_name=NAME asks Sentinels." default:"redis://127.0.0.1:6379/0"`
	Pool     string `help:"Name of the deployment; all its keys carry it as {NAME}." default:"main"`
}

// Log says what is logged. Logs go to standard error.
type Log struct {
	LogLevel  string `help:"Least level that is logged: debug, info, warn or error." default:"info" enum:"debug,info,warn,error"`
	LogFormat string `help:"Form of log lines: text or json." default:"text" enum:"text,json"`
}

// Logger makes the program's logger.
func (l Log) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.LogLevel)) // kong has checked it
	o := &slog.HandlerOptions{Level: level}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Options are kong's settings for all programs.
func Options(name, description string) []kong.Option {
	return []kong.Option{
		kong.Name(name), kong.Description(description), kong.UsageOnError(), kong.DefaultEnvars(EnvPrefix),
		kong.ConfigureHelp(kong.HelpOptions{Compact: false, WrapUpperBound: 120}),
	}
}

// Bytes reads a size such as 512MiB, 20GB or 1073741824.
func Bytes(s string) (int64, error) {
	text := strings.TrimSpace(s)
	i := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		i = len(text)
	}
	var n float64
	if _, err := fmt.Sscanf(text[:i], "%g", &n); err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size: want a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB", s)
	}
	units := map[string]float64{
		"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
	}
	unit, ok := units[strings.ToUpper(strings.TrimSpace(text[i:]))]
	if !ok || n*unit > 1<<62 {
		return 0, fmt.Errorf("%q is not a size: want a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB", s)
	}
	return int64(n * unit), nil
}

// Secret checks the pool's runner secret.
func Secret(s string) ([]byte, error) {
	if len(s) < 16 {
		return nil, errors.New("--runner-secret (REVEILLE_RUNNER_SECRET): at least 16 characters, the same on gateways and runners; for example from: openssl rand -hex 32")
	}
	return []byte(s), nil
}
