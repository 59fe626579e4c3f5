package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// resp is a command in the Redis protocol.
func resp(args ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(args))
	for _, a := range args {
		out += fmt.Sprintf("$%d\r\n%s\r\n", len(a), a)
	}
	return out
}

// Without the password the embedded Redis reads short commands alone, and allocates no memory for what a client announces.
func TestEmbeddedRedisBeforeAuth(t *testing.T) {
	const password = "0123456789abcdef0123456789abcdef"
	e, err := startRedis("127.0.0.1:0", password)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ask := func(addr, text string) string {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * authTime))
		_, _ = io.WriteString(c, text) // it may refuse before it has read all
		_ = c.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(c)
		return string(answer)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for text, want := range map[string]string{
		"*1\r\n$1099511627776\r\n":   "-ERR",
		"*1\r\n$500000000\r\nx":      "-ERR",
		"*1\r\n$-5\r\n":              "-ERR",
		"*1000000000\r\n":            "-ERR",
		"*-9\r\n":                    "-ERR",
		"*x\r\n":                     "-ERR",
		strings.Repeat("a", 4<<10):   "-ERR",
		"PING\r\n":                   "-ERR",
		resp("PING"):                 "-NOAUTH",
		resp("COMMAND"):              "-NOAUTH",
		resp("HELLO", "3"):           "-NOAUTH",
		resp("AUTH", "x"):            "-WRONGPASS",
		resp("AUTH", "default", "x"): "-WRONGPASS",
		resp("HELLO", "3", "AUTH", "default", "x"): "-WRONGPASS",
		resp("QUIT"):                          "+OK",
		resp("AUTH", password) + resp("PING"): "+OK\r\n+PONG",
		resp("HELLO", "2", "AUTH", "default", password) + resp("PING"): "*",
	} {
		if got := ask(e.Addr(), text); !strings.HasPrefix(got, want) {
			t.Errorf("%.60q: %.60q, want %q", text, got, want)
		}
	}
	if got := ask(e.Addr(), strings.Repeat("a", 1<<20)); got != "" && !strings.HasPrefix(got, "-ERR") { // a reset may overtake the answer
		t.Errorf("a megabyte without a line's end: %.60q", got)
	}
	if got := ask(e.db.Addr(), "*1\r\n$1099511627776\r\n"); strings.Contains(got, "OK") {
		t.Errorf("miniredis itself answers %q", got)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
	rdb := redis.NewClient(&redis.Options{Addr: e.Addr(), Password: password})
	defer rdb.Close()
	big := strings.Repeat("v", 4<<20)
	if err := rdb.Set(context.Background(), "k", big, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := rdb.Get(context.Background(), "k").Result(); err != nil || got != big {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Connections without the password are few, and do not keep those with it away for longer than authTime.
func TestEmbeddedRedisIdleConnections(t *testing.T) {
	e, err := startRedis("127.0.0.1:0", "0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i := range authConns {
		c, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(fmt.Errorf("%d: %w", i, err))
		}
		defer c.Close()
		if i == 0 {
			if _, err := io.WriteString(c, "*1\r\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(e.waiting) < authConns {
		runtime.Gosched()
	}
	c, err := net.Dial("tcp", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(authTime))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("one connection too many is served")
	}
}
