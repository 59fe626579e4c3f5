// Package config parses the programs' settings and defines those that several programs share. cobra parses commands and
// flags; env converts the strings of flags and of the environment.
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

// Redis configures the connection to the pool's state.
type Redis struct {
	RedisURL    string `help:"Redis of the pool: redis://, rediss:// or unix://. Several hosts separated by commas, or ?cluster=true, select a Cluster; ?master_name=NAME selects Sentinels; ?read_timeout=1s sets the timeout of a call (default 150ms)." default:"redis://127.0.0.1:6379/0"`
	RedisSecret string `help:"Secret of AWS Secrets Manager with the user and the password of Redis, {\"username\": …, \"password\": …}, in place of those of the URL. It is read again for new connections, at most once a minute, so that a rotation needs no restart."`
	Pool        string `help:"Name of the deployment; all its keys carry it as {NAME}." default:"main"`
}

// Log configures the log, which is written to standard error.
type Log struct {
	LogLevel  string `help:"Minimum log level: debug, info, warn or error." default:"info" enum:"debug,info,warn,error"`
	LogFormat string `help:"Format of log lines: text or json." default:"text" enum:"text,json"`
}

// Logger returns the program's logger.
func (l Log) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.LogLevel)) // Parse has checked it
	o := &slog.HandlerOptions{Level: level}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// ClientLimits are the limits of clients' connections and request bodies. The defaults are a gateway's, which sees
// private addresses only if it is behind a load balancer.
type ClientLimits struct {
	MaxHeld            string        `help:"Maximum memory for buffered requests and responses. Beyond it requests get 503." default:"1GiB"`
	ReadTimeout        time.Duration `help:"Timeout for a request's header, between reads of its body, and for a body slower than --min-rate." default:"30s"`
	MinRate            string        `help:"Minimum average rate of a request's body in bytes a second, after the first --read-timeout; slower ones get 408." default:"64KiB"`
	MaxConnsPerAddress int           `help:"Maximum connections from one address (IPv6: from one /64); 0 is no limit." default:"1024"`
	Proxies            []string      `help:"Address prefixes without that limit: proxies that serve many clients." default:"127.0.0.0/8,::1/128,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"`
}

// RunnerClientLimits are a runner's defaults: its clients are gateways, which open a connection for each request.
func RunnerClientLimits() ClientLimits {
	return ClientLimits{MaxConnsPerAddress: 16384, Proxies: []string{"127.0.0.0/8", "::1/128"}}
}

// Limits are ClientLimits after parsing. A zero field means the server's default.
type Limits struct {
	MaxHeld     int64 // bytes
	ReadTimeout time.Duration
	MinRate     int // bytes a second
	PerAddress  int
	Proxies     []netip.Prefix
}

// Parse checks the settings and reports all mistakes together.
func (c ClientLimits) Parse() (Limits, error) {
	l := Limits{ReadTimeout: c.ReadTimeout, PerAddress: c.MaxConnsPerAddress}
	var errs []error
	if c.MaxHeld != "" {
		n, err := Size("max-held", c.MaxHeld, math.MaxInt64)
		l.MaxHeld, errs = n, append(errs, err)
	}
	if c.MinRate != "" {
		n, err := Size("min-rate", c.MinRate, math.MaxInt32)
		l.MinRate, errs = int(n), append(errs, err)
	}
	if l.ReadTimeout < 0 {
		errs = append(errs, errors.New("--read-timeout: must not be negative"))
	}
	if l.PerAddress < 0 {
		errs = append(errs, errors.New("--max-conns-per-address: must not be negative"))
	}
	for _, text := range c.Proxies {
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

// Size parses a flag's value as a size from 1 to limit bytes.
func Size(flag, text string, limit int64) (int64, error) {
	n, err := catalog.ParseSize(text)
	if err == nil && (n < 1 || n > limit) {
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
