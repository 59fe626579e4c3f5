package config_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	gateway "reveille/gateway/app"
	"reveille/gateway/cli"
	"reveille/infra/config"
	runner "reveille/runner/app"
	warmer "reveille/warmer/app"
)

var write = flag.Bool("write", false, "write infra/docs/configuration.md in place of comparing it")

const preface = `# Configuration

Every setting is a flag and an environment variable, which is ` + "`REVEILLE_`" + ` and the flag's name in upper snake case:
` + "`--max-loaded-models`" + ` is ` + "`REVEILLE_MAX_LOADED_MODELS`" + `. Flags take precedence over variables, variables over defaults. An empty variable counts
as not set. Lists take commas. Durations are Go's (` + "`300ms`, `30s`, `2h`" + `), sizes have units (` + "`512MiB`, `20GB`" + `).
` + "`HF_ENDPOINT` and `HF_TOKEN`" + ` also work without the prefix.

` + "`make docs`" + ` writes this page from the programs' own help.
`

// The page lists every setting once, where it belongs, with its default and the words of --help.
func TestConfigurationPage(t *testing.T) {
	type shared struct {
		config.Redis
		config.Log
	}
	var page strings.Builder
	page.WriteString(preface)
	seen := map[string]bool{"help": true, "version": true}
	run, err := parse(&gateway.RunSettings{})
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range []struct {
		title, about string
		settings     any
	}{
		{"All programs", "", &shared{}},
		{"gateway serve", "Also of `gateway run`.", &gateway.ServeSettings{}},
		{"runner", "Also of `gateway run`, which passes them to the runners of its local hosts, except `--instance`, `--scaling-group`, `--launch-hook`," +
			" `--terminate-hook`, `--slot`, `--price`, `--sleep-command`, `--awake-while` and `--runner-tls`. A runner listens on 127.0.0.1:8090 by default and" +
			" also has `--max-held`, `--read-timeout`, `--min-rate`, `--max-conns-per-address` (16384), `--proxies`, `--runner-secret`, `--fair-after` and `--evict`.", &runner.Settings{}},
		{"warmer", "Also of `gateway run`, except `--project`, `--once`, `--dry-run` and `--json`. A warmer also has `--runner-secret`.", &warmer.Settings{}},
		{"gateway run", "", &gateway.RunSettings{}},
		{"gateway ps, load, unload and other commands", "", &cli.PS{}},
	} {
		c, err := parse(section.settings)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&page, "\n## %s\n\n", section.title)
		if section.about != "" {
			fmt.Fprintf(&page, "%s\n\n", section.about)
		}
		page.WriteString("| flag | default | meaning |\n|---|---|---|\n")
		c.Flags.VisitAll(func(f *pflag.Flag) {
			if seen[f.Name] {
				return
			}
			seen[f.Name] = true
			const also = "Also of `gateway run`"
			if strings.HasPrefix(section.about, also) && !strings.Contains(section.about, "`--"+f.Name+"`") && run.Flags.Lookup(f.Name) == nil {
				t.Errorf("gateway run has no --%s", f.Name)
			}
			usage, _, _ := strings.Cut(f.Usage, " ($")
			value := strings.Trim(f.DefValue, "[]")
			if value == "false" {
				value = ""
			}
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&page, "| `--%s` | %s | %s |\n", f.Name, value, strings.ReplaceAll(usage, "|", `\|`)+".")
		})
	}
	path := filepath.Join("..", "docs", "configuration.md")
	if *write {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != page.String() {
		t.Errorf("infra/docs/configuration.md is not what the settings say; `make docs` writes it (%v)", err)
	}
}
