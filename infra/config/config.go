// Package config reads the programs' settings, and holds those that several programs share: cobra reads commands and
// flags, env turns texts, of flags and of the environment, into values.
package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"time"

	"reveille/infra/catalog"
)

// Redis says where the pool's state is.
type Redis struct {
	RedisURL    string `help:"Redis of the pool: redis://, rediss:// or unix://; several hosts with commas, or ?cluster=true, are a Cluster; ?master_name=NAME asks Sentinels; ?read_timeout=1s bounds each call (default 150ms)." default:"redis://127.0.0.1:6379/0"`
	RedisSecret string `help:"Secret of AWS Secrets Manager with the user and the password of Redis, {\"username\": …, \"password\": …}, in place of those of the URL. It is read again for new connections, at most once a minute, so that a rotation needs no restart."`
	Pool        string `help:"Name of the deployment; all its keys carry it as {NAME}." default:"main"`
}

// Log says what is logged. Logs go to standard error.
type Log struct {
	LogLevel  string `help:"Least level that is logged: debug, info, warn or error." default:"info" enum:"debug,info,warn,error"`
	LogFormat string `help:"Form of log lines: text or json." default:"text" enum:"text,json"`
}

// Logger makes the program's logger.
func (l Log) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.LogLevel)) // Parse has checked it
	o := &slog.HandlerOptions{Level: level}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Intake are the limits on what clients' connections and request bodies may take of a server. The defaults are a
// gateway's, which sees private addresses only if it is behind a load balancer.
type Intake struct {
	MaxHeld            string        `help:"Most bytes of requests and answers held in memory at a time; more are refused with overloaded." default:"1GiB"`
	ReadTimeout        time.Duration `help:"Longest that a request's head may take, that its body may pause, and that its body may lag behind --min-rate." default:"30s"`
	MinRate            string        `help:"Bytes a second that a request's body must arrive with on average, after the first --read-timeout; slower ones are refused with 408." default:"64KiB"`
	MaxConnsPerAddress int           `help:"Most connections from one address (of IPv6: from one /64); 0 is no limit." default:"1024"`
	Proxies            []string      `help:"Addresses without that limit, as prefixes: those of proxies, behind which are many clients." default:"127.0.0.0/8,::1/128,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"`
}

// RunnerIntake are a runner's defaults: its clients are gateways, which open a connection for each request.
func RunnerIntake() Intake {
	return Intake{MaxConnsPerAddress: 16384, Proxies: []string{"127.0.0.0/8", "::1/128"}}
}

// Limits is an Intake after parsing. A zero field means the server's default.
type Limits struct {
	MaxHeld     int64 // bytes
	ReadTimeout time.Duration
	MinRate     int // bytes a second
	PerAddress  int
	Proxies     []netip.Prefix
}

// Parse checks the settings and reports all mistakes together.
func (i Intake) Parse() (Limits, error) {
	l := Limits{ReadTimeout: i.ReadTimeout, PerAddress: i.MaxConnsPerAddress}
	var errs []error
	if i.MaxHeld != "" {
		n, err := Size("max-held", i.MaxHeld, math.MaxInt64)
		l.MaxHeld, errs = n, append(errs, err)
	}
	if i.MinRate != "" {
		n, err := Size("min-rate", i.MinRate, math.MaxInt32)
		l.MinRate, errs = int(n), append(errs, err)
	}
	if l.ReadTimeout < 0 {
		errs = append(errs, errors.New("--read-timeout: must not be negative"))
	}
	if l.PerAddress < 0 {
		errs = append(errs, errors.New("--max-conns-per-address: must not be negative"))
	}
	for _, text := range i.Proxies {
		if text == "" || text == "none" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--proxies: %q is not an address prefix such as 10.0.0.0/8", text))
			continue
		}
		l.Proxies = append(l.Proxies, p.Masked())
	}
	return l, errors.Join(errs...)
}

// Size reads the text of a flag as a size from 1 to most bytes.
func Size(flag, text string, most int64) (int64, error) {
	n, err := catalog.ParseSize(text)
	if err == nil && (n < 1 || n > most) {
		err = fmt.Errorf("%s is out of range", text)
	}
	if err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	return n, nil
}

// Secret checks the pool's runner secret.
func Secret(s string) ([]byte, error) {
	if len(s) < 16 {
		return nil, errors.New("--runner-secret (REVEILLE_RUNNER_SECRET): at least 16 characters, the same on gateways, runners and warmers; for example from: openssl rand -hex 32")
	}
	return []byte(s), nil
}
