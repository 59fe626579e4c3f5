package testenv

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

const (
	redisStart    = 15 * time.Second // longest a redis-server may take to answer
	redisAttempts = 5                // ports tried, as another process may take one first
)

// Redis starts a private redis-server and returns its address (host:port). It keeps
// nothing on disk and is killed when the test ends.
func Redis(t testing.TB) string {
	t.Helper()
	return StartRedis(t).Addr
}

// PatientCalls, in the query of a Redis URL, lets a call to Redis take ten seconds. A program with such a URL does not take
// a Redis that answers slowly on a busy machine for one that is away.
const PatientCalls = "read_timeout=10s"

// RedisServer is a running redis-server that a test may stop, freeze and start again.
// Its methods must not be called at the same time.
type RedisServer struct {
	Addr string // stays the same over restarts

	t      testing.TB
	binary string
	dir    string
	args   []string
	tls    *tls.Config // how its clients speak to it; nil is plain
	cmd    *exec.Cmd
	exited <-chan struct{} // closed when cmd was reaped
}

// StartRedis is Redis for tests about Redis' own faults. args are further settings, for
// example "--maxmemory", "2mb".
func StartRedis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	return startRedis(t, nil, func() ([]string, error) { return args, nil })
}

// startRedis starts a server on a free port. args makes its further settings, again for each
// port that is tried. With a client's configuration of TLS the port speaks that and nothing
// else; the settings name the certificate.
func startRedis(t testing.TB, clients *tls.Config, args func() ([]string, error)) *RedisServer {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("testenv: redis-server is not installed; get it with: apt-get install redis-server")
	}
	s := &RedisServer{t: t, binary: binary, dir: t.TempDir(), tls: clients}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err == nil {
			s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			s.args, err = args()
		}
		if err == nil {
			err = s.start()
		}
		if err == nil {
			break
		}
		if attempt == redisAttempts {
			t.Fatal("testenv: redis-server:", err)
		}
	}
	t.Cleanup(s.Kill)
	return s
}

// Kill ends the server at once, without a word to its clients, and forgets its data. It
// does nothing if the server is not running.
func (s *RedisServer) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Restart starts an empty server at the same address, after killing the running one.
func (s *RedisServer) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatal("testenv: restart redis-server:", err)
	}
}

// Freeze stops the server's process until Thaw: connections stay open and nothing
// answers.
func (s *RedisServer) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (s *RedisServer) Thaw() { s.signal(syscall.SIGCONT) }

func (s *RedisServer) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal("testenv: signal redis-server:", err)
	}
}

// start runs the server and waits until it answers, or says why it did not.
func (s *RedisServer) start() error {
	host, port, _ := net.SplitHostPort(s.Addr)
	logfile := filepath.Join(s.dir, "redis.log")
	listen := []string{"--port", port}
	if s.tls != nil {
		listen = []string{"--port", "0", "--tls-port", port}
	}
	args := append([]string{
		"--bind", host, "--save", "", "--appendonly", "no",
		"--dir", s.dir, "--logfile", logfile, "--daemonize", "no",
	}, append(listen, s.args...)...)
	cmd := exec.Command(s.binary, args...)
	exited, err := StartChild(cmd)
	if err != nil {
		return err
	}
	s.cmd, s.exited = cmd, exited
	for deadline := time.Now().Add(redisStart); time.Now().Before(deadline); {
		select {
		case <-exited:
			s.cmd = nil
			return fmt.Errorf("ended at start: %s", lastLine(logfile))
		case <-time.After(10 * time.Millisecond):
		}
		if s.pings() {
			return nil
		}
	}
	s.Kill()
	return fmt.Errorf("no answer in %v: %s", redisStart, lastLine(logfile))
}

// pings reports whether the server answers.
func (s *RedisServer) pings() bool {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if s.tls != nil {
		conn = tls.Client(conn, s.tls)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(line, "+PONG")
}

func lastLine(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// MiniRedis starts the in-process Redis that gateway run embeds. Its clock stands still
// unless the test moves it; use Redis where expiry must happen by itself.
func MiniRedis(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	return miniredis.RunT(t)
}
