package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

func noEnv(string) string { return "" }

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		args string
		want func(*Config)
	}{
		{"", func(*Config) {}},
		{"--host 127.0.0.2 --port 1 --model m --type tts --ctx-size 9 --api-key k", func(c *Config) {
			c.Host, c.Port, c.Alias, c.Type, c.Ctx, c.APIKey = "127.0.0.2", 1, "m", "tts", 9, "k"
		}},
		{"--load-time 300ms --fail-load -1 --state s --need-file f", func(c *Config) {
			c.LoadTime, c.FailLoad, c.StateFile, c.NeedFile = 300*time.Millisecond, -1, "s", "f"
		}},
		{"--exit-after 2s", func(c *Config) { c.ExitAfter.after = 2 * time.Second }},
		{"--exit-after 3", func(c *Config) { c.ExitAfter.requests = 3 }},
		{"--hang", func(c *Config) { c.Hang = "infer" }},
		{"--hang load --tokens 2", func(c *Config) { c.Hang, c.Tokens = "load", 2 }},
		{"--step", func(c *Config) { c.Step = true }},
		{"--hang=health", func(c *Config) { c.Hang = "health" }},
		{"--garbage --ignore-sigterm", func(c *Config) { c.Garbage, c.IgnoreSigterm = "framing", true }},
		{"--garbage content-type", func(c *Config) { c.Garbage = "content-type" }},
		{"--oom-over 5 --call-cost 5ms --input-cost 100us --token-delay 1s", func(c *Config) {
			c.OOMOver, c.CallCost, c.InputCost, c.TokenDelay = 5, 5*time.Millisecond, 100*time.Microsecond, time.Second
		}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			want := Config{Host: "127.0.0.1", Port: 8080, Alias: "standin", Ctx: 4096, Tokens: 16}
			tc.want(&want)
			got, err := parse(strings.Fields(tc.args), noEnv, io.Discard)
			if err != nil || got != want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, args := range []string{
		"--type video", "--hang often", "--garbage nice", "--exit-after 0", "--exit-after -1s", "--exit-after soon",
		"--fail-load -2", "--tokens -1", "--load-time -1s", "--oom-over -1", "stray", "--no-such-flag",
	} {
		if got, err := parse(strings.Fields(args), noEnv, io.Discard); err == nil {
			t.Errorf("%s: accepted as %+v", args, got)
		}
	}
}
