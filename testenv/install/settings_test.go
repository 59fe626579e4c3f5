package install

import (
	"bytes"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"reveille/testenv"
)

// compose is what a compose file may have.
type compose struct {
	Name     string             `yaml:"name"`
	Confined service            `yaml:"x-confined"`
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
}

type service struct {
	Image       string                       `yaml:"image"`
	Entrypoint  []string                     `yaml:"entrypoint"`
	Command     []string                     `yaml:"command"`
	Environment map[string]any               `yaml:"environment"`
	Volumes     []string                     `yaml:"volumes"`
	Tmpfs       []string                     `yaml:"tmpfs"`
	Ports       []string                     `yaml:"ports"`
	NetworkMode string                       `yaml:"network_mode"`
	Restart     string                       `yaml:"restart"`
	ReadOnly    bool                         `yaml:"read_only"`
	CapDrop     []string                     `yaml:"cap_drop"`
	SecurityOpt []string                     `yaml:"security_opt"`
	DependsOn   map[string]map[string]string `yaml:"depends_on"`
	StopGrace   string                       `yaml:"stop_grace_period"`
	Healthcheck struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Timeout  string   `yaml:"timeout"`
		Start    string   `yaml:"start_period"`
		Disable  bool     `yaml:"disable"`
	} `yaml:"healthcheck"`
}

func readCompose(t *testing.T, file string) compose {
	t.Helper()
	var c compose
	if err := yaml.NewDecoder(bytes.NewReader(read(t, file)), yaml.Strict()).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

// variables are the settings that a program has, by its help.
func variables(t *testing.T, program string, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), testenv.Build(t, program), append(args, "--help")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`\(\$(REVEILLE_\w+)\)`).FindAllSubmatch(regexp.MustCompile(`\s+`).ReplaceAll(out, []byte(" ")), -1) {
		all = append(all, string(m[1]))
	}
	if len(all) < 5 {
		t.Fatalf("%s has only the settings %q", program, all)
	}
	return all
}

// TestComposeSettings looks for each setting of the compose files in the help of its service's program, and for each secret
// in all that must agree on it.
func TestComposeSettings(t *testing.T) {
	serve, run, warmer, runner := variables(t, "gateway", "serve"), variables(t, "gateway", "run"), variables(t, "warmer"), variables(t, "runner")
	for _, file := range []struct {
		name, redis string
		programs    map[string][]string
	}{
		{"compose.yaml", "redis://redis:6379/0", map[string][]string{"gateway": serve, "warmer": warmer, "runner": runner}},
		{"compose.nas.yaml", "redis://:${REDIS_PASSWORD}@127.0.0.1:6379/0", map[string][]string{"gateway": run}},
	} {
		c := readCompose(t, file.name)
		for name, s := range c.Services {
			if file.name == "compose.nas.yaml" && s.NetworkMode != "host" {
				t.Errorf("%s: %s has a network of its own, which has no broadcasts", file.name, name)
			}
			if name == "redis" {
				continue
			}
			for _, v := range slices.Sorted(maps.Keys(s.Environment)) {
				if !slices.Contains(file.programs[name], v) {
					t.Errorf("%s: %s has no setting %s", file.name, name, v)
				}
			}
			if !strings.HasPrefix(s.Environment["REVEILLE_RUNNER_SECRET"].(string), "${REVEILLE_RUNNER_SECRET:?") || s.Environment["REVEILLE_REDIS_URL"] != file.redis {
				t.Errorf("%s: %s: %v", file.name, name, s.Environment)
			}
			for _, v := range s.Volumes {
				if from, _, _ := strings.Cut(v, ":"); !strings.HasPrefix(from, "./") {
					if _, ok := c.Volumes[from]; !ok {
						t.Errorf("%s: %s: there is no volume %s", file.name, name, from)
					}
				}
			}
		}
	}
}
