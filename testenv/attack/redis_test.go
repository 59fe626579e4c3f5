package attack

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestEmbeddedRedisPassword checks that the embedded Redis answers nothing without the password of the state folder, that
// nobody can read the password from a process list or a log, and that it outlives a restart.
func TestEmbeddedRedisPassword(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)})
	path := filepath.Join(s.StateDir, "redis-password")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v %v, want mode 0600", path, info, err)
	}
	password := s.RedisPassword()
	if len(password) < 32 {
		t.Errorf("a password of %d characters", len(password))
	}
	for _, command := range []string{
		"PING", "ECHO x", "SELECT 0", "KEYS *", "SCAN 0", "DBSIZE", "INFO", "GET rv:{main}:epoch", "HGETALL rv:{main}:catalog", "HSET rv:{main}:catalog json x",
		"FLUSHALL", "EVAL return(1) 0", "EVALSHA 0 0", "SCRIPT LOAD return(1)", "SCRIPT FLUSH", "MULTI", "WATCH x", "PUBLISH rv:{main}:events x",
		"SUBSCRIBE rv:{main}:events", "PSUBSCRIBE *", "PUBSUB CHANNELS", "BLPOP x 1", "XREAD BLOCK 1 STREAMS x 0", "CLUSTER SLOTS",
		"OBJECT IDLETIME x", "DUMP x", "SWAPDB 0 1", "TIME",
	} {
		for _, before := range []string{"", "AUTH wrong", "AUTH default wrong", "AUTH default ", "HELLO 3", "HELLO 3 AUTH default wrong"} {
			if got := lastReply(t, s.RedisAddr, before, command); !strings.HasPrefix(got, "-NOAUTH") {
				t.Errorf("%q after %q: %.40q, want NOAUTH", command, before, got)
			}
		}
	}
	for _, before := range []string{"AUTH " + password, "AUTH default " + password, "HELLO 3 AUTH default " + password} {
		if got := lastReply(t, s.RedisAddr, before, "PING"); !strings.HasPrefix(got, "+PONG") {
			t.Errorf("PING with the password: %q", got)
		}
	}
	for _, p := range append(s.Processes(), testenv.Process{PID: s.PID()}) {
		argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err == nil && strings.Contains(string(argv), password) {
			t.Errorf("the password is in the command line of process %d: %q", p.PID, argv)
		}
	}
	if log := s.Log(); strings.Contains(log, password) {
		t.Error("the password is in the log")
	} else if line := "REDISCLI_AUTH=$(cat " + path + ") redis-cli -p " + port(t, s.RedisAddr) + " "; !strings.Contains(log, line) {
		t.Errorf("the banner does not print %q", line)
	}
	s.Stop()
	again := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{"--state-dir", s.StateDir}})
	rdb := redis.NewClient(&redis.Options{Addr: again.RedisAddr, Password: password, MaxRetries: -1})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the password of the first start, after the second: %v", err)
	}
}

func port(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// lastReply sends commands on a connection of its own, spaces between their words, and returns the beginning of the last
// one's reply.
func lastReply(t *testing.T, addr string, commands ...string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit))
	reply := make([]byte, 4096)
	n := 0
	for _, c := range commands {
		if c == "" {
			continue
		}
		words := strings.Split(c, " ")
		text := "*" + strconv.Itoa(len(words)) + "\r\n"
		for _, w := range words {
			text += "$" + strconv.Itoa(len(w)) + "\r\n" + w + "\r\n"
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if n, err = conn.Read(reply); err != nil {
			t.Fatalf("%q: %v", c, err)
		}
	}
	return string(reply[:n])
}
