package kubernetes_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/drivers"
	"reveille/infra/power/kubernetes"
	"reveille/testenv"
	"reveille/testenv/waketest"
)

var built = flag.String("cluster", "", "folder for etcd, kube-apiserver and kube-controller-manager, which are built there; set by make kube-check")

// patience is the longest wait for what a cluster does.
const patience = 2 * time.Minute

// TestCluster holds the driver against the contract with a real API server, etcd and the controllers of workloads, of
// the version of client-go here. The driver may do what the Role of the documentation says. There is no node, and no
// scheduler: the test says whether a pod has one.
func TestCluster(t *testing.T) {
	if *built == "" {
		t.Skip("run by make kube-check")
	}
	c := startCluster(t, build(t, *built))
	for kind, other := range map[string]string{"statefulset": "deployment", "deployment": "statefulset"} {
		t.Run(kind, func(t *testing.T) {
			waketest.Run(t, func(t *testing.T) waketest.Fixture {
				c.workload(t, kind)
				before := c.started()
				host := catalog.Host{Name: "gpu-1", Driver: catalog.DriverKubernetes, Workload: kind + "/gpu-1", Namespace: "models"}
				strange := host
				strange.Workload = other + "/gpu-1"
				return waketest.Fixture{
					Driver: drivers.Remote(nil)[catalog.DriverKubernetes], Host: host, Strange: &strange, Starts: func() int { return c.started() - before },
					Keeps: true, // a controller that has not seen the sleep yet ends no pod
				}
			})
		})
		if kind == "statefulset" {
			t.Run("slot", func(t *testing.T) { c.slot(t) })
		}
		t.Run(kind+" without a node", func(t *testing.T) {
			c.workload(t, kind)
			host := catalog.Host{Name: "gpu-1", Driver: catalog.DriverKubernetes, Workload: kind + "/gpu-1", Namespace: "models"}
			d := drivers.Kubernetes(kubernetes.Config{Poll: 100 * time.Millisecond, Unplaced: time.Second})
			refused := func(words string) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := d.Wake(ctx, host); !errors.Is(err, power.ErrNoCapacity) || !strings.Contains(err.Error(), words) {
					t.Errorf("%v, want no capacity: %s", err, words)
				}
				c.within(t, "the host is off", func() bool { is, err := d.State(t.Context(), host); return err == nil && is == power.Off })
			}
			const full = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
			c.schedule(full)
			refused(full)
			c.schedule("")
			const quotas = "/api/v1/namespaces/models/resourcequotas"
			c.make(t, quotas, `{"metadata":{"name":"few"},"spec":{"hard":{"pods":"0"}}}`)
			defer c.call(t, http.MethodDelete, quotas+"/few", "")
			c.within(t, "the quota counts", func() bool {
				_, quota := c.call(t, http.MethodGet, quotas+"/few", "")
				return strings.Contains(quota, `"used":`)
			})
			refused("exceeded quota: few")
		})
	}
}

// slot holds a slot of a StatefulSet against the contract while the slot before it is on.
func (c *cluster) slot(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		c.workload(t, "statefulset")
		d := drivers.Remote(nil)[catalog.DriverKubernetes]
		first := catalog.Host{
			Name: "gpu-1-1", Of: "gpu-1", Slot: 1, Max: 2, Driver: catalog.DriverKubernetes, Workload: "statefulset/gpu-1", Namespace: "models",
		}
		second := first
		second.Name, second.Slot = "gpu-1-2", 2
		if err := d.Wake(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		c.within(t, "the first slot is on", func() bool { is, err := d.State(t.Context(), first); return err == nil && is == power.On })
		before := c.started()
		t.Cleanup(func() {
			if is, err := d.State(context.WithoutCancel(t.Context()), first); err != nil || is != power.On {
				t.Errorf("the first slot is %s (%v)", is, err)
			}
		})
		strange := second
		strange.Workload = "deployment/gpu-1"
		return waketest.Fixture{Driver: d, Host: second, Strange: &strange, Starts: func() int { return c.started() - before }, Keeps: true}
	})
}

// build makes the programs from their Go modules, unless they are there.
func build(t *testing.T, dir string) string {
	t.Helper()
	run := func(env []string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, errs.Bytes())
		}
		return strings.TrimSpace(string(out))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	version, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/client-go").Output() // v0.37.2 of Kubernetes v1.37.2
	if err != nil {
		t.Fatal(err)
	}
	staging := strings.TrimSpace(string(version))
	release := "v1" + strings.TrimPrefix(staging, "v0")
	bin := filepath.Join(dir, release)
	programs := []string{"go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager"}
	if _, err := os.Stat(filepath.Join(bin, "kube-controller-manager")); err == nil { // the last one
		return bin
	}
	// The module of Kubernetes takes its libraries from folders beside it; elsewhere their published versions do.
	var fetched struct{ GoMod string }
	if err := json.Unmarshal([]byte(run([]string{"GOFLAGS=-mod=mod"}, "mod", "download", "-json", "k8s.io/kubernetes@"+release)), &fetched); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fetched.GoMod)
	if err != nil {
		t.Fatal(err)
	}
	mod := fmt.Sprintf("module cluster\n\ngo 1.26\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.7.3\n\tk8s.io/kubernetes %s\n)\n", release)
	for _, p := range programs {
		mod += "tool " + p + "\n"
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) v0\.0\.0$`).FindAllSubmatch(text, -1) {
		mod += fmt.Sprintf("replace %s => %s %s\n", m[1], m[1], staging)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600); err != nil {
		t.Fatal(err)
	}
	run(nil, "mod", "tidy")
	for _, p := range programs {
		name := filepath.Base(strings.TrimSuffix(p, "/server/v3"))
		run(nil, "build", "-ldflags=-s -w", "-o", filepath.Join(bin, name), p)
	}
	return bin
}

// cluster is a control plane on loopback.
type cluster struct {
	url    string
	client *http.Client // of an administrator

	mu          sync.Mutex
	pods        map[string]bool // by the ids of all that ever were
	unplaceable string          // what the scheduler says about the next pods; "": they have a node
}

// started is how many pods there ever were.
func (c *cluster) started() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pods)
}

// startCluster starts a control plane, and has KUBECONFIG name it and a user who may do what the documentation's Role
// says.
func startCluster(t *testing.T, bin string) *cluster {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	port := func() string { return fmt.Sprint(testenv.FreePort(t)) }
	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key := file("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(signer)})))
	tokens := file("tokens.csv", "admin-token,admin,1,system:masters\n"+token+",reveille,2\n")

	state, peers, serve := "http://127.0.0.1:"+port(), "http://127.0.0.1:"+port(), port()
	testenv.StartProgram(t, "etcd", filepath.Join(bin, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--listen-client-urls="+state,
		"--advertise-client-urls="+state, "--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers, "--unsafe-no-fsync")
	testenv.StartProgram(t, "kube-apiserver", filepath.Join(bin, "kube-apiserver"), "--etcd-servers="+state, "--bind-address=127.0.0.1", "--secure-port="+serve,
		"--cert-dir="+dir, "--authorization-mode=RBAC", "--token-auth-file="+tokens, "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://cluster.example", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--disable-admission-plugins=ServiceAccount") // pods have none, as no controller makes it
	c := &cluster{url: "https://127.0.0.1:" + serve, pods: map[string]bool{}}
	certificate := filepath.Join(dir, "apiserver.crt")
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(certificate); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal("the API server has no certificate")
		}
	}
	config := func(name, user string) string {
		t.Helper()
		authority, err := os.ReadFile(certificate)
		if err != nil {
			t.Fatal(err)
		}
		return file(name, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %s}}]
`, c.url, base64.StdEncoding.EncodeToString(authority), user))
	}
	admin := config("admin", "admin-token")
	settings, err := clientcmd.BuildConfigFromFlags("", admin)
	if err != nil {
		t.Fatal(err)
	}
	settings.QPS = -1
	if c.client, err = rest.HTTPClientFor(settings); err != nil {
		t.Fatal(err)
	}
	c.within(t, "the API server is ready", func() bool { status, _ := c.call(t, http.MethodGet, "/readyz", ""); return status == http.StatusOK })
	testenv.StartProgram(t, "kube-controller-manager", filepath.Join(bin, "kube-controller-manager"), "--kubeconfig="+admin,
		"--controllers=statefulset-controller,deployment-controller,replicaset-controller,garbage-collector-controller,resourcequota-controller",
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port="+port(), "--cert-dir="+dir)

	c.make(t, "/api/v1/namespaces", `{"metadata":{"name":"models"}}`)
	c.make(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/models/roles", documentedRole(t))
	c.make(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/models/rolebindings", `{"metadata":{"name":"power"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reveille-power"},"subjects":[{"kind":"User","name":"reveille"}]}`)
	t.Setenv("KUBECONFIG", config("reveille", token))
	c.watchPods(t)
	return c
}

// documentedRole is the Role of infra/docs/hosts.md, as JSON.
func documentedRole(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), "infra", "docs", "hosts.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```yaml\n(apiVersion: rbac[^`]+kind: Role\n[^`]+)```").FindSubmatch(text)
	if found == nil {
		t.Fatal("hosts.md has no Role")
	}
	role, err := yaml.YAMLToJSON(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return string(role)
}

// call makes a call as the administrator, and returns the response's status, 0 if there is none, and body.
func (c *cluster) call(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	case body != "":
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func (c *cluster) make(t *testing.T, path, object string) {
	t.Helper()
	if status, text := c.call(t, http.MethodPost, path, object); status != http.StatusCreated {
		t.Fatalf("POST %s: %d %s", path, status, text)
	}
}

func (c *cluster) within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// watchPods notes the pods that are made from here on.
func (c *cluster) watchPods(t *testing.T) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/api/v1/namespaces/models/pods?watch=1&timeoutSeconds=3600", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = resp.Body.Close(); <-done })
	go func() {
		defer close(done)
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var event struct {
				Object struct{ Metadata struct{ Name, UID string } }
			}
			if json.Unmarshal(lines.Bytes(), &event) != nil || event.Object.Metadata.UID == "" {
				continue
			}
			c.mu.Lock()
			known, unplaceable := c.pods[event.Object.Metadata.UID], c.unplaceable
			c.pods[event.Object.Metadata.UID] = true
			c.mu.Unlock()
			if known {
				continue
			}
			condition := `"status":"True"`
			if unplaceable != "" {
				condition = fmt.Sprintf(`"status":"False","reason":"Unschedulable","message":%q`, unplaceable)
			}
			// The pod may be gone already.
			c.call(t, http.MethodPatch, "/api/v1/namespaces/models/pods/"+event.Object.Metadata.Name+"/status",
				`{"status":{"conditions":[{"type":"PodScheduled",`+condition+`}]}}`)
		}
	}()
}

// schedule sets what the scheduler says about the next pods.
func (c *cluster) schedule(unplaceable string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unplaceable = unplaceable
}

// workload makes gpu-1 again, of one kind and without a pod.
func (c *cluster) workload(t *testing.T, kind string) {
	t.Helper()
	const apps = "/apis/apps/v1/namespaces/models/"
	for _, old := range []string{"statefulset", "deployment"} {
		c.call(t, http.MethodDelete, apps+old+"s/gpu-1?propagationPolicy=Foreground", "")
		c.within(t, "the last "+old+" is gone", func() bool {
			status, _ := c.call(t, http.MethodGet, apps+old+"s/gpu-1", "")
			return status == http.StatusNotFound
		})
	}
	c.within(t, "its pod is gone", func() bool {
		_, pods := c.call(t, http.MethodGet, "/api/v1/namespaces/models/pods", "")
		return strings.Contains(pods, `"items":[]`)
	})
	parallel := ""
	if kind == "statefulset" { // a pod does not wait for the ones before it to be ready, which they never are without a node
		parallel = `"podManagementPolicy":"Parallel",`
	}
	c.make(t, apps+kind+"s", fmt.Sprintf(`{"metadata":{"name":"gpu-1"},"spec":{"replicas":0,%s"selector":{"matchLabels":{"host":"gpu-1"}},"template":{
		"metadata":{"labels":{"host":"gpu-1"}},"spec":{"containers":[{"name":"runner","image":"runner"}]}}}}`, parallel))
}
