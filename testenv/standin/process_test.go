package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

// patience is the longest any of these tests waits for a process.
const patience = 30 * time.Second

// process is a stand-in started as a runner would start it.
type process struct {
	cmd    *exec.Cmd
	stderr *bufio.Reader
}

func spawn(t *testing.T, flags ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := exec.CommandContext(ctx, testenv.Standin(t), flags...)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return &process{cmd, bufio.NewReader(pipe)}
}

// waitFor reads the log up to a line with the text and returns that line.
func (p *process) waitFor(t *testing.T, text string) string {
	t.Helper()
	for {
		line, err := p.stderr.ReadString('\n')
		if strings.Contains(line, text) {
			return line
		}
		if err != nil {
			t.Fatalf("the log ended before %q", text)
		}
	}
}

// end waits for the process and returns the rest of its log and its status.
func (p *process) end() (string, syscall.WaitStatus) {
	rest, _ := io.ReadAll(p.stderr)
	_ = p.cmd.Wait()
	return string(rest), p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func TestProcessFailsTheFirstStarts(t *testing.T) {
	state := filepath.Join(t.TempDir(), "starts")
	for range 2 {
		log, status := spawn(t, "--port", "0", "--fail-load", "2", "--state", state).end()
		if status.ExitStatus() != 1 || !strings.Contains(log, "error: failed to load model") {
			t.Errorf("status %d: %s", status.ExitStatus(), log)
		}
	}
	spawn(t, "--port", "0", "--fail-load", "2", "--state", state).waitFor(t, "msg=ready")
	if _, status := spawn(t, "--port", "0", "--fail-load", "-1").end(); status.ExitStatus() != 1 {
		t.Errorf("--fail-load -1: status %d", status.ExitStatus())
	}
}

func TestProcessCountsStartsOfItsParent(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	if _, status := spawn(t, "--port", "0", "--fail-load", "1").end(); status.ExitStatus() != 1 {
		t.Errorf("first start: status %d", status.ExitStatus())
	}
	spawn(t, "--port", "0", "--fail-load", "1").waitFor(t, "msg=ready")
}

func TestProcessMissingFile(t *testing.T) {
	log, status := spawn(t, "--port", "0", "--need-file", "/nowhere/x.gguf").end()
	if status.ExitStatus() != 1 || !strings.Contains(log, "failed to open GGUF file '/nowhere/x.gguf' (no such file or directory)") {
		t.Errorf("status %d: %s", status.ExitStatus(), log)
	}
}

func TestProcessOnUnixSocketDiesBySignalInMidStream(t *testing.T) {
	dir, err := os.MkdirTemp("", "standin") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "e.sock")
	p := spawn(t, "--host", socket, "--exit-after", "1")
	p.waitFor(t, "msg=ready")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	resp, err := client.Post("http://engine/v1/chat/completions", "", strings.NewReader(askStream))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || strings.Count(string(body), "data: ") != 1 {
		t.Errorf("got %q, %v", body, err)
	}
	if _, status := p.end(); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", status)
	}
}

func TestProcessSignals(t *testing.T) {
	for _, flags := range [][]string{nil, {"--load-time", "1h"}, {"--hang", "load"}} {
		p := spawn(t, append([]string{"--port", "0"}, flags...)...)
		p.waitFor(t, "msg=loading")
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if log, status := p.end(); !status.Exited() || status.ExitStatus() != 0 {
			t.Errorf("%v: SIGTERM ended it with %v: %s", flags, status, log)
		}
	}
	p := spawn(t, "--port", "0", "--ignore-sigterm")
	addr := p.waitFor(t, "msg=listening")
	addr = strings.TrimSpace(addr[strings.Index(addr, "addr=")+len("addr="):])
	p.waitFor(t, "msg=ready")
	for range 3 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		resp, err := http.Get("http://" + addr + "/health")
		if err != nil {
			t.Fatal("gone after SIGTERM:", err)
		}
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}
