package testenv

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Program is a child process of a test, for worlds that are put together from single programs: several gateways, runners,
// a Sentinel. It is killed when the test ends, and a failed test shows the end of what it wrote. Its methods must not be
// called at the same time, but for Log, PID and Exited.
type Program struct {
	URL string // http://127.0.0.1:PORT of a gateway, "" for others

	t      testing.TB
	name   string
	log    string // file
	tmp    string // the processes' folder for temporary files
	cmd    *exec.Cmd
	exited <-chan struct{}
}

// StartProgram starts a program. The environment is the test's, without settings of this project's programs.
func StartProgram(t testing.TB, name, binary string, args ...string) *Program {
	t.Helper()
	return StartProgramEnv(t, nil, name, binary, args...)
}

// StartProgramEnv is StartProgram with variables of the environment, NAME=VALUE, over the test's.
func StartProgramEnv(t testing.TB, env []string, name, binary string, args ...string) *Program {
	t.Helper()
	p := launch(t, env, name, binary, args...)
	t.Cleanup(func() {
		p.Kill()
		p.judge()
	})
	return p
}

// launch starts a program that its caller ends.
func launch(t testing.TB, env []string, name, binary string, args ...string) *Program {
	t.Helper()
	p := &Program{t: t, name: name, log: filepath.Join(t.ArtifactDir(), fmt.Sprintf("%s-%d.log", name, time.Now().UnixNano())), tmp: shortTemp(t)}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal("testenv:", err)
	}
	defer out.Close()
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir = Root(t)
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "REVEILLE_") }), "TMPDIR="+p.tmp)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if p.exited, err = StartChild(p.cmd); err != nil {
		t.Fatalf("testenv: %s: %v", name, err)
	}
	return p
}

// shortTemp makes a folder with a short name: socket paths are bounded.
func shortTemp(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rv")
	if err != nil {
		t.Fatal("testenv:", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

var listens = regexp.MustCompile(`msg="(?:gateway|runner) listens" (?:host=\S+ )?addr=(\S+)`)

// StartGateway starts `gateway serve` on a free port and returns when GET /health is 200. models is the text of a models
// file.
func StartGateway(t testing.TB, redisURL, secret, models string, args ...string) *Program {
	t.Helper()
	file := filepath.Join(t.TempDir(), "models.yaml")
	if err := os.WriteFile(file, []byte(models), 0o600); err != nil {
		t.Fatal("testenv:", err)
	}
	p := StartProgram(t, "gateway", Build(t, "gateway"), append([]string{
		"serve", "--addr=127.0.0.1:0", "--redis-url=" + redisURL, "--runner-secret=" + secret, "--models=" + file,
	}, args...)...)
	p.URL = "http://" + p.Await(listens)[1]
	for deadline := time.Now().Add(systemStart); ; time.Sleep(5 * time.Millisecond) {
		if resp, err := http.Get(p.URL + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("testenv: %s is not ready in %v", p.name, systemStart)
		}
	}
}

// StartRunner starts the runner of a host, which finds the stand-in engine and the pinned llama-server, and returns its
// address (host:port) when it listens.
func StartRunner(t testing.TB, redisURL, secret, host, stateDir string, args ...string) (p *Program, addr string) {
	t.Helper()
	return StartRunnerEnv(t, nil, redisURL, secret, host, stateDir, args...)
}

// StartRunnerEnv is StartRunner with variables of the environment, NAME=VALUE, over the test's.
func StartRunnerEnv(t testing.TB, env []string, redisURL, secret, host, stateDir string, args ...string) (p *Program, addr string) {
	t.Helper()
	engines := t.TempDir()
	if err := os.Symlink(Standin(t), filepath.Join(engines, "standin")); err != nil {
		t.Fatal("testenv:", err)
	}
	p = StartProgramEnv(t, env, "runner-"+host, Build(t, "runner"), append([]string{
		"--runner-addr=127.0.0.1:0", "--redis-url=" + redisURL, "--runner-secret=" + secret, "--host=" + host, "--state-dir=" + stateDir,
		"--engines-dir=" + engines, "--engines-dir=" + filepath.Join(Root(t), ".cache", "engines", "llama-server", "bin"),
	}, args...)...)
	return p, p.Await(listens)[1]
}

// Await waits until the program has written something that matches, and returns the match and its groups.
func (p *Program) Await(what *regexp.Regexp) []string {
	p.t.Helper()
	for deadline := time.Now().Add(systemStart); time.Now().Before(deadline); {
		if m := what.FindStringSubmatch(p.Log()); m != nil {
			return m
		}
		select {
		case <-p.exited:
			p.t.Fatalf("testenv: %s ended: %v\n%s", p.name, p.cmd.ProcessState, p.Log())
		case <-time.After(5 * time.Millisecond):
		}
	}
	p.t.Fatalf("testenv: %s has not written %q in %v", p.name, what, systemStart)
	return nil
}

// Log returns what the program has written.
func (p *Program) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// PID is the number of the program's process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the program has ended.
func (p *Program) Exited() <-chan struct{} { return p.exited }

// State says how the program ended; call it after Exited.
func (p *Program) State() *os.ProcessState { return p.cmd.ProcessState }

// Signal sends the program a signal; one that has ended gets none.
func (p *Program) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Kill ends the program with SIGKILL and waits for its end.
func (p *Program) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.exited
}

// judge looks at what a program that has ended wrote, and shows the end of it if the test failed.
func (p *Program) judge() {
	log := p.Log()
	checkLog(p.t, p.name, log, secretsOf(p.cmd.Args, p.cmd.Env))
	if p.t.Failed() {
		lines := strings.Split(strings.TrimSpace(log), "\n")
		p.t.Logf("the end of %s:\n%s", p.log, strings.Join(lines[max(0, len(lines)-logTail):], "\n"))
	}
}
