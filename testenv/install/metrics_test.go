package install

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"reveille/testenv"
)

// TestMetrics looks for each metric of the alert rules and of the dashboard, with each label that is asked for, in the list of metrics,
// which is that of the programs.
func TestMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "infra/docs/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{} // by metric
	for section := range strings.SplitSeq(string(page), "\n## ") {
		common := ""
		if strings.HasPrefix(section, "Embedding batches") {
			common = "model"
		}
		for _, m := range regexp.MustCompile("(?m)^\\| `(reveille_\\w+)(?:\\{(.*)\\})?`").FindAllStringSubmatch(section, -1) {
			labels[m[1]] = common + "," + m[2] + ","
		}
	}
	exprs := dashboard(t)
	for _, rule := range alertRules(t) {
		exprs = append(exprs, rule.Expr)
	}
	if len(exprs) < 20 {
		t.Errorf("only %d expressions", len(exprs))
	}
	for _, expr := range exprs {
		asked := ""
		if by := regexp.MustCompile(`by \((.*?)\)`).FindStringSubmatch(expr); by != nil {
			asked = by[1]
		}
		names := regexp.MustCompile(`(reveille_\w+)(?:\{(\w+))?`).FindAllStringSubmatch(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s asks for no metric", expr)
		}
		for _, m := range names {
			name := strings.Replace(m[1], "reveille_pool_", "reveille_runner_", 1)
			if m[1] == "reveille_pool_runners" {
				name = m[1]
			}
			family := strings.TrimSuffix(name, "_bucket")
			has, ok := labels[family]
			if !ok {
				t.Errorf("%s: there is no metric %s", expr, m[1])
				continue
			}
			if family != name {
				has += "le,"
			}
			for _, label := range []string{asked, m[2]} {
				if label != "" && !strings.Contains(","+has, ","+label+",") {
					t.Errorf("%s: %s has no label %s", expr, m[1], label)
				}
			}
			if counter := strings.HasSuffix(name, "_total") || family != name; counter != regexp.MustCompile(`(rate|increase)\(`+m[1]+`\b`).MatchString(expr) {
				t.Errorf("%s: a counter needs a rate, and a gauge has none", expr)
			}
		}
	}
}

type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// alertRules reads the alert rules, which have all that an alert needs.
func alertRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string      `yaml:"name"`
			Rules []alertRule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(read(t, "prometheus/alerts.yaml")), yaml.Strict()).Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("alert %q lacks a name, severity or summary", r.Alert)
			}
			rules = append(rules, r)
		}
	}
	return rules
}

// dashboard are the expressions of the dashboard's panels.
func dashboard(t *testing.T) (exprs []string) {
	t.Helper()
	var file struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "grafana/dashboard.json"), &file); err != nil {
		t.Fatal(err)
	}
	for _, p := range file.Panels {
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	return exprs
}
