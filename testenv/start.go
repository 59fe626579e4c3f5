package testenv

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	systemStart = 60 * time.Second // longest until GET /health is 200
	systemStop  = 60 * time.Second // longest from SIGINT to the end of the process
	systemGone  = 15 * time.Second // longest until the rest has gone with it
	logTail     = 200              // lines of the log that a failure shows
)

// Spec is what Start starts.
type Spec struct {
	// Models is a models file: its path below the module, or its text, which has several lines.
	Models string
	// StateDir is the folder of an earlier system to go on with; empty makes a new one.
	StateDir string
	// Args are further flags of `gateway run`.
	Args []string
	// Redis is a server to use; nil embeds one.
	Redis *RedisServer
	// Cluster is a Redis Cluster with TLS to use instead; its URL is EndpointURL's.
	Cluster *RedisCluster
	// Patient waits for that Redis or Cluster as PatientCalls says.
	Patient bool
}

// System is a running `gateway run` with all that it starts: a runner, engines, an embedded Redis. Its methods must not be
// called at the same time.
type System struct {
	*Program
	RedisAddr string // where redis-cli finds the pool: a socket's path, or host:port; of a Cluster, one node's
	StateDir  string // what --state-dir names

	spec   Spec
	models string // file
}

// Start runs `gateway run` on free ports and returns when GET /health is 200. The models' paths are relative to the
// module. When the test ends the system is stopped as by Ctrl-C, and the test fails if anything of it stays: see Stop.
// A failed test shows the end of the log.
func Start(t testing.TB, spec Spec) *System {
	t.Helper()
	root, gateway := Root(t), Build(t, "gateway")
	s := &System{Program: &Program{t: t}, spec: spec, StateDir: spec.StateDir, models: filepath.Join(root, spec.Models)}
	if s.StateDir == "" {
		s.StateDir = ShortDir(t)
	}
	engines := filepath.Join(t.TempDir(), "engines")
	if err := errors.Join(os.Mkdir(engines, 0o755), os.Symlink(Standin(t), filepath.Join(engines, "standin"))); err != nil {
		t.Fatal("testenv:", err)
	}
	if strings.Contains(spec.Models, "\n") {
		s.models = filepath.Join(t.TempDir(), "models.yaml")
		s.SetModels(spec.Models)
	}
	args := []string{
		"run", "--addr", "127.0.0.1:0", "--models", s.models, "--state-dir", s.StateDir,
		"--engines-dir", engines, "--engines-dir", filepath.Join(root, ".cache", "engines", "llama-server", "bin"),
	}
	var env []string
	calls := ""
	if spec.Patient {
		calls = PatientCalls
	}
	switch {
	case spec.Cluster != nil:
		args = append(args, "--redis-url", spec.Cluster.EndpointURL()+"&"+calls)
		env = append(env, "SSL_CERT_FILE="+spec.Cluster.Authority)
	case spec.Redis != nil:
		args = append(args, "--redis-url", "redis://"+spec.Redis.Addr+"/0?"+calls)
	}
	s.Program = launch(t, env, "gateway-run", gateway, append(args, spec.Args...)...)
	t.Cleanup(func() {
		s.Stop()
		s.judge()
	})
	s.awaitHealth()
	return s
}

// ShortDir makes a folder that goes with the test, with a path that leaves room for a socket's name.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "state-")
	if err != nil {
		t.Fatal("testenv:", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// AdminKey is the key that a system without API keys made for itself.
func (s *System) AdminKey() string {
	s.t.Helper()
	key, err := os.ReadFile(filepath.Join(s.StateDir, "admin-key"))
	if err != nil {
		s.t.Fatal("testenv:", err)
	}
	return strings.TrimSpace(string(key))
}

// SetModels replaces the models file of a system that was given the text of one.
func (s *System) SetModels(text string) {
	s.t.Helper()
	fresh := s.models + ".new"
	if err := errors.Join(os.WriteFile(fresh, []byte(text), 0o600), os.Rename(fresh, s.models)); err != nil {
		s.t.Fatal("testenv:", err)
	}
}

// Processes returns all processes that the gateway has started, directly or not, and that still run.
func (s *System) Processes() []Process { return Descendants(s.PID()) }

// Greeting of `gateway run`: where it is, and where its Redis is.
var (
	greetURL   = regexp.MustCompile(`serves \d+ models? at (http://\S+)/v1`)
	greetRedis = regexp.MustCompile(`redis-cli -s (\S+)`)
)

func (s *System) awaitHealth() {
	s.t.Helper()
	why := "it has not said where it listens"
	for deadline := time.Now().Add(systemStart); time.Now().Before(deadline); {
		select {
		case <-s.exited:
			s.t.Fatal("testenv: gateway run ended at start: ", s.cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
		log := s.Log()
		at := greetURL.FindStringSubmatch(log)
		if at == nil || !s.findRedis(log) {
			continue
		}
		s.URL = at[1]
		resp, err := http.Get(s.URL + "/health")
		if err != nil {
			why = err.Error()
			continue
		}
		resp.Body.Close()
		if why = "GET /health: " + resp.Status; resp.StatusCode == http.StatusOK {
			return
		}
	}
	s.t.Fatalf("testenv: gateway run is not ready in %v: %s", systemStart, why)
}

// findRedis finds where redis-cli reaches the pool.
func (s *System) findRedis(log string) bool {
	switch {
	case s.spec.Cluster != nil:
		s.RedisAddr = s.spec.Cluster.Addrs[0]
		return true
	case s.spec.Redis != nil:
		s.RedisAddr = s.spec.Redis.Addr
		return true
	}
	at := greetRedis.FindStringSubmatch(log)
	if at != nil {
		s.RedisAddr = at[1]
	}
	return at != nil
}

// Stop ends the system as Ctrl-C does and checks what is promised of that: status 0, no process left, nothing listens,
// no temporary file, and in a Redis of its own no model, no ticket and no lock. It does nothing to a system that has ended.
func (s *System) Stop() {
	s.t.Helper()
	if s.ended() {
		return
	}
	family := s.Processes()
	s.Signal(syscall.SIGINT)
	select {
	case <-s.exited:
	case <-time.After(systemStop):
		s.t.Errorf("testenv: gateway run has not ended %v after SIGINT", systemStop)
		s.Program.Kill()
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Errorf("testenv: gateway run after SIGINT: %v", s.cmd.ProcessState)
	}
	s.gone(family)
	if left, _ := filepath.Glob(filepath.Join(s.tmp, "reveille-*", "*")); len(left) > 0 {
		s.t.Errorf("testenv: left in the temporary folder: %v", left)
	}
	if s.spec.Cluster != nil || s.spec.Redis != nil && s.spec.Redis.cmd != nil {
		s.released()
	}
}

// Kill ends the gateway's process with SIGKILL and checks that all it started goes with it.
func (s *System) Kill() {
	s.t.Helper()
	family := s.Processes()
	s.Program.Kill()
	s.gone(family)
}

func (s *System) ended() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// gone checks that processes have ended and that the addresses are free.
func (s *System) gone(family []Process) {
	s.t.Helper()
	var left []Process
	for deadline := time.Now().Add(systemGone); ; time.Sleep(10 * time.Millisecond) {
		if left = slices.DeleteFunc(slices.Clone(family), func(p Process) bool { return !p.Alive() }); len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, p := range left {
		s.t.Errorf("testenv: process left: %v", p)
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	addrs := [][2]string{{"tcp", strings.TrimPrefix(s.URL, "http://")}}
	if s.spec.Redis == nil && s.spec.Cluster == nil {
		addrs = append(addrs, [2]string{"unix", s.RedisAddr})
	}
	for _, addr := range addrs {
		if conn, err := net.DialTimeout(addr[0], addr[1], time.Second); err == nil {
			conn.Close()
			s.t.Errorf("testenv: something still listens on %s", addr[1])
		}
	}
}

// released checks that Redis holds no claim of the system that ended.
func (s *System) released() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := s.look()
	defer c.Close()
	keys, err := poolKeys(ctx, c)
	if err != nil {
		s.t.Errorf("testenv: %v", err)
	}
	for _, key := range keys {
		_, name, _ := strings.Cut(key, "}:")
		switch kind, _, _ := strings.Cut(name, ":"); kind {
		case "model", "models", "npu", "queue", "begun", "wanted", "wake":
			s.t.Errorf("testenv: left in Redis: %s", key)
		case "host":
			if state, err := c.HGet(ctx, key, "state").Result(); err != nil || state != "asleep" {
				s.t.Errorf("testenv: left in Redis: %s is %q (%v), want asleep", key, state, err)
			}
		case "ticket":
			if t := c.HGetAll(ctx, key).Val(); t["state"] == "queued" || t["state"] == "loading" {
				s.t.Errorf("testenv: left in Redis: %s %v", key, t)
			}
		}
	}
}

// Redis opens a client of the system's pool for a test that looks. It is closed with the test.
func (s *System) Redis() redis.UniversalClient {
	c := s.look()
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *System) look() redis.UniversalClient {
	if s.spec.Cluster != nil {
		return s.spec.Cluster.connect()
	}
	return redis.NewClient(&redis.Options{Addr: s.RedisAddr, MaxRetries: -1}) // a path is a unix socket's
}
