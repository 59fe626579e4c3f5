package system

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"reveille/infra/rpc"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// TestTLS: requests go from a client to a gateway and from there to a runner by TLS, also to a runner that has started
// again with another certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, fingerprint := testenv.Certificate(t, dir)
	f := worlds.Fleet{
		Admin: true, Models: calls.Catalogue{"chat": "llm, recipe: standin, device: cpu"}, Hosts: []worlds.Host{{Name: "h", Flags: []string{"--runner-tls=on"}}},
	}
	w := worlds.StartFleet(t, f)
	w.Use("chat")
	if resp, err := http.Get("http://" + w.HostField("h", "addr") + rpc.PathHost); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("the runner answers without TLS")
		}
	}
	before := w.HostField("h", "tls")
	w.Runner().Kill()
	redis := "redis://" + w.RedisAddr + "/0"
	testenv.StartRunner(t, redis, worlds.Secret, "h", t.TempDir(), "--devices=cpu", "--runner-tls=on")
	kit.Becomes(t, "the runner has another certificate", true, func() bool { now := w.HostField("h", "tls"); return len(now) == 64 && now != before })
	w.Use("chat")

	models := filepath.Join(dir, "models.yaml")
	text := f.Models.YAML("") + "hosts:\n  h: {driver: exec, devices: [cpu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n"
	if err := os.WriteFile(models, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	second := testenv.StartProgram(t, "gateway", testenv.Build(t, "gateway"), "serve", "--addr=127.0.0.1:0", "--redis-url="+redis,
		"--runner-secret="+worlds.Secret, "--models="+models, "--tls-cert="+certFile, "--tls-key="+keyFile)
	gateway := second.Await(regexp.MustCompile(`msg="gateway listens" addr=(\S+)`))[1]
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: rpc.Pin(fingerprint), DisableKeepAlives: true}}
	req, err := calls.Request(t.Context(), "https://"+gateway, w.Models.Type("chat"), "chat")
	if a := calls.Do(client, req, err); !a.OK() {
		t.Error(a)
	}
	health := exec.CommandContext(t.Context(), testenv.Build(t, "gateway"), "health", "--url="+gateway, "--tls-cert="+certFile)
	if out, err := health.CombinedOutput(); err != nil || strings.Contains(string(out), "error") {
		t.Errorf("gateway health: %v %s", err, out)
	}
}
