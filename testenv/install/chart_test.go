package install

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"reveille/infra/catalog"
	"reveille/testenv"
)

var helm = flag.String("helm", "", "the command helm, see make chart-check")

// TestChartSettings looks for each setting of the chart in the help of the program that gets it.
func TestChartSettings(t *testing.T) {
	programs := map[string][]string{"gateway": variables(t, "gateway", "serve"), "warmer": variables(t, "warmer"), "runners": variables(t, "runner")}
	for name, has := range programs {
		text := string(read(t, "chart/templates/"+name+".yaml"))
		all := append(regexp.MustCompile(`REVEILLE_\w+`).FindAllString(text, -1), "REVEILLE_REDIS_URL", "REVEILLE_RUNNER_SECRET") // of a helper
		if len(all) < 3 || !strings.Contains(text, `include "reveille.env"`) {
			t.Errorf("%s has only the settings %q", name, all)
		}
		for _, v := range all {
			if !slices.Contains(has, v) {
				t.Errorf("%s has no setting %s", name, v)
			}
		}
	}
}

// TestChart renders the chart and decodes what comes out strictly: Kubernetes knows every field. Its parts fit
// together.
func TestChart(t *testing.T) {
	if *helm == "" {
		t.Skip("no helm: run make chart-check")
	}
	chart := filepath.Join(testenv.Root(t), "infra/install/chart")
	run := func(args ...string) []byte {
		t.Helper()
		words := append(strings.Fields(*helm), args...)
		var errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s%s", args, err, out, errs.Bytes())
		}
		return out
	}
	run("lint", "--strict", chart)
	for name, args := range map[string][]string{
		"default": nil,
		"gpu and another Redis": {
			"--set", "redis.url=rediss://cache.example.org:6379/0", "--set", "hosts.gpu-1.devices={cpu,gpu}", "--set", "hosts.gpu-1.storage=100Gi",
			"--set-string", `hosts.gpu-1.resources.limits.nvidia\.com/gpu=1`, "--set", "hosts.gpu-1.pod.nodeSelector.pool=gpu",
			"--set", "hosts.gpu-1.pod.tolerations[0].key=gpu", "--set", "hosts.gpu-1.pod.tolerations[0].operator=Exists", "--set", "hosts.gpu-1.pod.runtimeClassName=nvidia",
		},
		"a group of hosts": {
			"--set", "hosts.gpu.max=3", "--set", "hosts.gpu.devices={cpu,gpu}", "--set", "hosts.gpu.storage=1Gi",
			"--set", "hosts.gpu.resources.limits.memory=1Gi",
		},
		"several hosts, settings, shared weights, aliases": {
			"--set", "hosts.gpu.count=3", "--set", "hosts.gpu.devices={cpu,gpu}", "--set", "hosts.gpu.storage=1Gi", "--set", "hosts.gpu.resources.limits.memory=1Gi",
			"--set", "hosts.gpu.volumes[0].name=weights", "--set", "hosts.gpu.volumes[0].persistentVolumeClaim.claimName=weights",
			"--set", "hosts.gpu.volumeMounts[0].name=weights", "--set", "hosts.gpu.volumeMounts[0].mountPath=/models", "--set", "hosts.gpu.env.REVEILLE_CTX_SIZE=4096",
			"--set", "gateway.env.REVEILLE_HOLD=10m", "--set", "gateway.envFrom[0].secretRef.name=hub", "--set", "warmer.env.REVEILLE_IDLE=5m", "--set", "catalog.defaults.idle=20m",
			"--set", "networkPolicy=false", "--set-json", `extra=[{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "{{ .Release.Name }}-other"},
				"spec": {"selector": {"app.kubernetes.io/component": "warmer"}}}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			fits(t, decode(t, run(append([]string{"template", "pool", chart, "--namespace", "models"}, args...)...)))
		})
	}
}

// objects are those of a rendered chart.
type objects struct {
	configs      []core.ConfigMap
	services     []core.Service
	deployments  []apps.Deployment
	statefulSets []apps.StatefulSet
	policies     []network.NetworkPolicy
	budgets      []policy.PodDisruptionBudget
	roles        []rbac.Role
	bindings     []rbac.RoleBinding
}

func decode(t *testing.T, text []byte) (o objects) {
	t.Helper()
	for doc := range strings.SplitSeq("\n"+string(text), "\n---") {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		var err error
		switch kind.APIVersion + " " + kind.Kind {
		case " ": // a comment
		case "v1 ServiceAccount":
			err = yaml.UnmarshalStrict([]byte(doc), new(core.ServiceAccount))
		case "v1 ConfigMap":
			err = add(&o.configs, doc)
		case "v1 Service":
			err = add(&o.services, doc)
		case "apps/v1 Deployment":
			err = add(&o.deployments, doc)
		case "networking.k8s.io/v1 NetworkPolicy":
			err = add(&o.policies, doc)
		case "policy/v1 PodDisruptionBudget":
			err = add(&o.budgets, doc)
		case "apps/v1 StatefulSet":
			err = add(&o.statefulSets, doc)
		case "rbac.authorization.k8s.io/v1 Role":
			err = add(&o.roles, doc)
		case "rbac.authorization.k8s.io/v1 RoleBinding":
			err = add(&o.bindings, doc)
		default:
			err = fmt.Errorf("%+v is not expected", kind)
		}
		if err != nil {
			t.Errorf("%v:\n%s", err, doc)
		}
	}
	return o
}

func add[T any](to *[]T, doc string) error {
	var v T
	err := yaml.UnmarshalStrict([]byte(doc), &v)
	*to = append(*to, v)
	return err
}

// fits holds the parts of a chart against each other.
func fits(t *testing.T, o objects) {
	t.Helper()
	pods := map[string]core.PodTemplateSpec{}
	var hosts []string
	for _, d := range o.deployments {
		pods[d.Name] = d.Spec.Template
		selects(t, d.Name, d.Spec.Selector.MatchLabels, d.Spec.Template)
	}
	for _, s := range o.statefulSets {
		pods[s.Name] = s.Spec.Template
		selects(t, s.Name, s.Spec.Selector.MatchLabels, s.Spec.Template)
		if s.Spec.Template.Labels["reveille/host"] != "" {
			hosts = append(hosts, s.Name)
			if s.Spec.Replicas != nil {
				t.Errorf("%s has replicas, which an upgrade would set", s.Name)
			}
		}
		if !slices.ContainsFunc(o.services, func(service core.Service) bool { return service.Name == s.Spec.ServiceName }) {
			t.Errorf("%s: there is no service %s", s.Name, s.Spec.ServiceName)
		}
	}
	for _, s := range o.services {
		matches := 0
		for _, p := range pods {
			if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.Labels)) {
				matches++
			}
		}
		if matches != 1 {
			t.Errorf("service %s selects %d kinds of pods", s.Name, matches)
		}
	}
	for name, p := range pods {
		confined(t, name, p.Spec)
	}
	for _, policy := range o.policies {
		to, _ := meta.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		from, err := meta.LabelSelectorAsSelector(policy.Spec.Ingress[0].From[0].PodSelector)
		if err != nil || len(policy.Spec.Ingress) != 1 || len(policy.Spec.Ingress[0].From) != 1 {
			t.Fatal(policy.Name, err)
		}
		reached := map[bool]bool{}
		for _, p := range pods {
			reached[to.Matches(labels.Set(p.Labels))] = true
		}
		if gateway := pods["pool-gateway"].Labels; !reached[true] && policy.Name != "pool-redis" || !from.Matches(labels.Set(gateway)) || from.Matches(labels.Set{"app.kubernetes.io/name": "reveille"}) {
			t.Errorf("%s: %v from %v", policy.Name, to, from)
		}
	}
	if len(o.budgets) != 1 || !labels.SelectorFromSet(o.budgets[0].Spec.Selector.MatchLabels).Matches(labels.Set(pods["pool-gateway"].Labels)) {
		t.Errorf("budgets: %v", o.budgets)
	}

	if len(o.configs) != 1 || len(o.roles) != 1 || len(o.bindings) != 1 {
		t.Fatalf("%d config maps, %d roles, %d bindings", len(o.configs), len(o.roles), len(o.bindings))
	}
	c, _, err := catalog.Parse("models.yaml", []byte(o.configs[0].Data["models.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Models) == 0 {
		t.Error("the models file has no model")
	}
	var named []string
	for _, h := range c.Hosts {
		named = append(named, strings.TrimPrefix(h.Workload, "statefulset/"))
		if h.Namespace != "models" {
			t.Errorf("host %s is in namespace %s", h.Name, h.Namespace)
		}
		name, slot := cmp.Or(h.Of, h.Name), core.EnvVar{Name: "REVEILLE_SLOT", Value: "pod"}
		pod := pods["pool-"+name].Spec.Containers
		if len(pod) == 0 || !slices.Contains(pod[0].Env, core.EnvVar{Name: "REVEILLE_HOST", Value: name}) || slices.Contains(pod[0].Env, slot) != (h.Of != "") {
			t.Errorf("no runner says that it is host %s", h.Name)
		}
	}
	slices.Sort(named)
	named = slices.Compact(named)
	slices.Sort(hosts)
	if len(hosts) == 0 || !slices.Equal(named, hosts) {
		t.Errorf("the models file names %q, and there are %q", named, hosts)
	}
	may := ""
	for _, rule := range o.roles[0].Rules {
		may += fmt.Sprintln(rule.Verbs, rule.APIGroups, rule.Resources)
		slices.Sort(rule.ResourceNames)
		if slices.Contains(rule.Verbs, "patch") && !slices.Equal(rule.ResourceNames, hosts) {
			t.Errorf("the role names %q, and there are %q", rule.ResourceNames, hosts)
		}
	}
	if may != "[get patch] [apps] [statefulsets/scale]\n[list] [] [pods events]\n" {
		t.Errorf("the role may %s", may)
	}
	account := o.bindings[0].Subjects[0].Name
	for _, name := range []string{"pool-gateway", "pool-warmer"} {
		if pods[name].Spec.ServiceAccountName != account {
			t.Errorf("%s has account %s, the binding's is %s", name, pods[name].Spec.ServiceAccountName, account)
		}
	}
}

// selects holds a workload's selector against its pods' labels.
func selects(t *testing.T, name string, selector map[string]string, p core.PodTemplateSpec) {
	t.Helper()
	if len(selector) < 3 || !labels.SelectorFromSet(selector).Matches(labels.Set(p.Labels)) {
		t.Errorf("%s selects %v, its pods have %v", name, selector, p.Labels)
	}
}

// confined holds a pod to the restricted profile of Kubernetes' pod security standards, and to a root that is
// read-only.
func confined(t *testing.T, name string, p core.PodSpec) {
	t.Helper()
	s := p.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: %+v", name, s)
	}
	for _, c := range p.Containers {
		s := c.SecurityContext
		if s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: %+v", name, s)
		}
		if c.Resources.Limits == nil {
			t.Errorf("%s has no limits", name)
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(p.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) && m.Name != "data" && m.Name != "state" {
				t.Errorf("%s: there is no volume %s", name, m.Name)
			}
		}
	}
}
