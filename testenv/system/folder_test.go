package system

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A second gateway in one state folder ends with the reason, and one in a copy of the folder leaves the first one's engines
// alone.
func TestSecondGatewayOfAStateFolder(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{"m": "llm"}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost)})
	w := &world{worlds.Of(t, models, s)}
	w.Use("m")
	family := s.Processes()

	said := refused(t, models, "--state-dir="+s.StateDir)
	if !strings.Contains(said, "another gateway run") || !strings.Contains(said, s.StateDir) || !strings.Contains(said, "--state-dir") {
		t.Errorf("a second gateway in the folder said: %s", said)
	}

	folder := filepath.Join(t.TempDir(), "copy")
	sockets, _ := filepath.Glob(filepath.Join(s.StateDir, "*.sock")) // they cannot be copied; gateways fall back to the address
	for _, socket := range sockets {
		_ = os.Remove(socket)
	}
	if err := os.CopyFS(folder, os.DirFS(s.StateDir)); err != nil {
		t.Fatal(err)
	}
	other := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{"--state-dir=" + folder}})
	(&world{worlds.Of(t, models, other)}).Use("m")
	for _, p := range family {
		if !p.Alive() {
			t.Errorf("process %s of the first gateway ended", p)
		}
	}
	w.Use("m")
}

// Two programs with one host in one pool would take it from each other without end, and a runner's address that is taken does
// not become free by waiting: a start that meets either ends with its reason, and what runs stays as it is.
func TestStartsThatCannotWork(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	models := calls.Catalogue{"m": "llm"}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Redis: server, Patient: true})
	w := &world{worlds.Of(t, models, s)}
	w.Use("m")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for want, arg := range map[string]string{
		`runs the host "local" of this pool`: "--redis-url=redis://" + server.Addr + "/0", "give it another --runner-addr": "--runner-addr=" + taken.Addr().String(),
	} {
		if said := refused(t, models, "--state-dir="+testenv.ShortDir(t), arg); !strings.Contains(said, want) {
			t.Errorf("%s: %s", arg, said)
		}
	}
	w.Use("m")
}

// Commands find the gateway of a state folder and its Redis.
func TestCommandsFindTheGatewayOfAStateFolder(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{"m": "llm"}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{"--pool=other"}})
	w := &world{worlds.Of(t, models, s)}
	w.Use("m")
	run := func(program string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), testenv.Build(t, program), args...)
		cmd.Dir = filepath.Dir(s.StateDir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s %q: %v: %s", program, args, err, out)
		}
		return string(out)
	}
	folder := "--state-dir=" + filepath.Base(s.StateDir)
	if out := run("gateway", "mm", folder); !strings.Contains(out, "SIGNATURE") {
		t.Errorf("gateway mm: %s", out)
	}
	if out := run("gateway", "ps", folder); !strings.Contains(out, "m ") {
		t.Errorf("gateway ps: %s", out)
	}
	if out := run("warmer", "--once", "--idle=0s", "--json", folder); !strings.Contains(out, `"m"`) {
		t.Errorf("warmer --once: %s", out)
	}
	kit.Becomes(t, "models that are loaded", false, func() bool { return strings.Contains(run("gateway", "ps", folder), "loaded") })

	s.Stop()
	if left := calls.Get(t.Context(), http.DefaultClient, s.URL+"/health"); left.Err == nil {
		t.Error("the gateway is still there")
	}
	for _, args := range [][]string{{"gateway", "ps", folder}, {"gateway", "mm", folder}} {
		cmd := exec.CommandContext(t.Context(), testenv.Build(t, args[0]), args[1:]...)
		cmd.Dir = filepath.Dir(s.StateDir)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%q without a gateway: %s", args, out)
		}
	}
}
