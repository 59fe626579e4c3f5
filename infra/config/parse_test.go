package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// A limit is written as the documents write it: a number, or a list of separate words, including -1.
func TestMaxLoadedModelsWithoutQuotes(t *testing.T) {
	for line, want := range map[string]string{
		"--max-loaded-models -1 --host a":    "-1",
		"--max-loaded-models 5 2 4 --host a": "5 2 4",
		"--host a --max-loaded-models 1 -1":  "1 -1",
		"--max-loaded-models=3 --host a":     "3",
	} {
		var flags struct {
			MaxLoadedModels string
			Host            string
		}
		if _, err := Parse(&flags, "test", "A test.", strings.Fields(line)); err != nil || flags.MaxLoadedModels != want || flags.Host != "a" {
			t.Errorf("%s: %q, %q, %v", line, flags.MaxLoadedModels, flags.Host, err)
		}
	}
	same := []string{"--max-loaded-models", "x", "--max-loaded-models"}
	if got := joinLimits(same); !slices.Equal(got, same) {
		t.Errorf("%q became %q", same, got)
	}
}

// What a command line gives is set, or refused with words that say what is wrong. A value may start with a hyphen.
func TestCommandLine(t *testing.T) {
	type settings struct {
		Sub struct {
			Model        string        `arg:""`
			Rest         []string      `arg:"" optional:""`
			Idle         time.Duration `default:"1m"`
			LlamacppArgs string
			Size         int
			Level        string   `enum:"low,high" default:"low"`
			List         []string `default:"a,b"`
			JSON         bool
		} `cmd:""`
		Group struct {
			Show struct{ All bool } `cmd:"" default:"1"`
			Drop struct{}           `cmd:""`
		} `cmd:""`
	}
	for line, want := range map[string]string{
		"sub m":                                  "{m [] 1m0s  0 low [a b] false}",
		"sub m a,b c":                            "{m [a,b c] 1m0s  0 low [a b] false}",
		"sub m --idle -1s":                       "{m [] -1s  0 low [a b] false}",
		"sub m --json --llamacpp-args --no-mmap": "{m [] 1m0s --no-mmap 0 low [a b] true}",
		"sub m --list x --list=y,z --json=false": "{m [] 1m0s  0 low [x y z] false}",
		"sub m --list= --level high":             "{m [] 1m0s  0 high [] false}",
		"sub -- --idle":                          "{--idle [] 1m0s  0 low [a b] false}",
		"":                                       "a command is missing; test --help lists them",
		"sub":                                    "<model> is missing",
		"sub m --idle soon":                      "--idle",
		"sub m --idle=":                          "--idle",
		"sub m --size many":                      "--size",
		"sub m --level loud":                     `--level (REVEILLE_LEVEL): "loud" is none of low, high`,
		"sub m --list":                           "flag needs an argument: --list",
		"sub m --lost":                           "unknown flag: --lost",
		"sob":                                    "Did you mean this?\n\tsub",
		"group extra":                            `unexpected argument "extra"`,
	} {
		var s settings
		_, err := Parse(&s, "test", "A test.", strings.Fields(line))
		if err == nil {
			if got := fmt.Sprint(s.Sub); got != want {
				t.Errorf("%s: %s, want %s", line, got, want)
			}
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	for line, want := range map[string]string{
		"group": "*struct { All bool } false", "group --all": "*struct { All bool } true", "group drop": "*struct {} false", "group show --all": "*struct { All bool } true",
	} {
		var s settings
		c, err := Parse(&s, "test", "A test.", strings.Fields(line))
		if err != nil {
			t.Fatal(line, err)
		}
		if got := fmt.Sprintf("%T %v", c.settings, s.Group.Show.All); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// An error of a Redis that nobody named says how to name one.
func TestExplain(t *testing.T) {
	refused := errors.New("connection refused")
	if err := (RedisFinder{StateDir: t.TempDir()}).Explain(refused); !errors.Is(err, refused) || !strings.Contains(err.Error(), "--state-dir") {
		t.Error(err)
	}
	for _, n := range []RedisFinder{{RedisURL: "redis://h", StateDir: t.TempDir()}, {RedisURL: "redis://h"}} {
		if err := n.Explain(refused); err != refused {
			t.Error(err)
		}
	}
	if err := (RedisFinder{StateDir: t.TempDir()}).Explain(nil); err != nil {
		t.Error(err)
	}
}

// A command line without words is not the program's own.
func TestNoArguments(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = []string{"runner", "report"}
	var s struct{ Host string }
	if _, err := Parse(&s, "runner report", "A test.", nil); err != nil {
		t.Error(err)
	}
}
