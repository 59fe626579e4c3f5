package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/infra/catalog"
	runner "reveille/runner/app"
)

// The runner that gateway run starts has the labels of its flag besides those of the file, and the file's memory after
// the flag's, so that it counts; --host names the host.
func TestRunPassesLabelsAndHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "models.yaml")
	if err := os.WriteFile(file, []byte("hosts:\n  a: {driver: local, devices: cpu}\n  b: {driver: local, devices: cpu}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := RunSettings{GatewayFlags: GatewayFlags{Models: file}, HostSettings: runner.HostSettings{Host: "a", Labels: "fast, big", MemoryBudget: "cpu=1GiB gpu=1GiB"}}
	if err := s.checkHost(); err != nil {
		t.Error(err)
	}
	all := s
	for addr, want := range map[string]bool{"127.0.0.1:0": true, "127.0.0.1:4000": false} {
		if all.Host, all.RunnerAddr = "", addr; (all.checkHost() == nil) != want {
			t.Errorf("two local hosts and --runner-addr %s: %v", addr, all.checkHost())
		}
	}
	r, err := s.runner(catalog.Host{Name: "a", Labels: []string{"own"}, Memory: map[string]catalog.Size{"gpu": 1 << 31, "npu": 5}})
	if err != nil || r.Labels != "own,fast,big" || r.Host != "a" || r.MemoryBudget != "cpu=1GiB gpu=1GiB gpu=2147483648 npu=5" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.runner(catalog.Host{Name: "b"}); err == nil {
		t.Error("another host is started in spite of --host")
	}
	if err := os.WriteFile(file, []byte("models: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.Host = "desk"; s.checkHost() != nil {
		t.Error("a models file without hosts has no host of any name")
	}
	for _, bad := range []string{"a/b", "../x", "-a"} {
		if s.Host = bad; s.checkHost() == nil {
			t.Errorf("--host %s is accepted", bad)
		}
	}
	if err := os.WriteFile(file, []byte("hosts:\n  a: {driver: local, devices: cpu}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Host = "c"
	if err := s.checkHost(); err == nil || !strings.Contains(err.Error(), "--host c") {
		t.Errorf("%v", err)
	}
}

// A models file without hosts has this machine with the labels of the flag; a model that names another host is an
// error.
func TestLocalHostHasTheLabels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "models.yaml")
	if err := os.WriteFile(file, []byte("models:\n  m: {recipe: standin, type: llm, device: cpu, hosts: [fast]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := RunSettings{GatewayFlags: GatewayFlags{Models: file}, HostSettings: runner.HostSettings{Labels: "slow fast"}}
	c, err := s.catalog()
	if err != nil || len(c.Hosts) != 1 || c.Hosts[0].Name != "local" {
		t.Fatal(err)
	}
	if r, err := s.runner(*c.Hosts[0]); err != nil || r.Labels != "slow,fast" {
		t.Errorf("%q, %v", r.Labels, err)
	}
	s.Labels = "slow"
	if _, err := s.catalog(); err == nil || !strings.Contains(err.Error(), `"fast"`) {
		t.Errorf("%v", err)
	}
}
