package app

import (
	"strings"
	"testing"
	"time"

	"reveille/infra/config"
)

// front is what the flags' defaults are.
func frontDefaults() GatewayFlags {
	return GatewayFlags{
		Addr: "127.0.0.1:0", Hold: time.Minute, CommitAfter: 5 * time.Second, Keepalive: 5 * time.Second, ShutdownTimeout: 5 * time.Second,
		MaxBody: "64MiB", ClientLimits: config.ClientLimits{MaxHeld: "1GiB", ReadTimeout: 30 * time.Second, MinRate: "64KiB"},
	}
}

func TestSettings(t *testing.T) {
	p, err := frontDefaults().parse()
	if err != nil || p.maxBody != 64<<20 || p.limits.MaxHeld != 1<<30 || p.keys.Configured() {
		t.Fatalf("%+v %v", p, err)
	}
	for want, change := range map[string]func(*GatewayFlags){
		"--max-body":              func(f *GatewayFlags) { f.MaxBody = "0" },
		"--max-body: bad size":    func(f *GatewayFlags) { f.MaxBody = "many" },
		"--max-body: 9TB is out":  func(f *GatewayFlags) { f.MaxBody = "9TB" },
		"--max-held":              func(f *GatewayFlags) { f.MaxHeld = "-1" },
		"--read-timeout":          func(f *GatewayFlags) { f.ReadTimeout = -time.Second },
		"--min-rate: bad size":    func(f *GatewayFlags) { f.MinRate = "fast" },
		"--max-conns-per-address": func(f *GatewayFlags) { f.MaxConnsPerAddress = -1 },
		"--proxies: \"10.0.0.1\"": func(f *GatewayFlags) { f.Proxies = []string{"10.0.0.1"} },
		"--memory-limit":          func(f *GatewayFlags) { f.MemoryLimit = "most" },
		"--hold":                  func(f *GatewayFlags) { f.Hold = 0 },
		"--hold-whole":            func(f *GatewayFlags) { f.HoldWhole = -1 },
		"--keepalive":             func(f *GatewayFlags) { f.Keepalive = -time.Second },
		"--max-conns":             func(f *GatewayFlags) { f.MaxConns = -1 },
		"api keys":                func(f *GatewayFlags) { f.APIKeysFile = "no-such-file" },
		"only loopback":           func(f *GatewayFlags) { f.Addr = ":8080" },
		"want host:port":          func(f *GatewayFlags) { f.Addr = "8080" },
		"every web page":          func(f *GatewayFlags) { f.CORSOrigins = []string{"https://a.test", "*"} },
		"origin \"null\"":         func(f *GatewayFlags) { f.CORSOrigins = []string{"null"} },
		"host \"*\"":              func(f *GatewayFlags) { f.AllowedHosts = []string{"*"} },
	} {
		f := frontDefaults()
		change(&f)
		if _, err := f.parse(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	both := frontDefaults()
	both.Hold, both.MaxBody = 0, "x"
	if _, err := both.parse(); err == nil || !strings.Contains(err.Error(), "--hold") || !strings.Contains(err.Error(), "--max-body") {
		t.Errorf("all mistakes are told at once: %v", err)
	}
}

func TestMayListen(t *testing.T) {
	for addr, open := range map[string]bool{
		"127.0.0.1:0": true, "[::1]:1": true, "localhost:1": true, "127.9.9.9:1": true, ":1": false, "0.0.0.0:1": false, "[::]:1": false, "192.0.2.1:1": false, "example.org:1": false,
	} {
		if err := mayListen(addr, false); (err == nil) != open {
			t.Errorf("%s without keys: %v", addr, err)
		}
		if err := mayListen(addr, true); err != nil {
			t.Errorf("%s with keys: %v", addr, err)
		}
	}
}
