package attack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestEmbeddedRedis checks that the embedded Redis listens on a socket that its owner alone can reach and on no port, that
// redis-cli needs no password there, and that a process with a seccomp filter, as every engine has, is not served.
func TestEmbeddedRedis(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)})
	path := filepath.Join(s.StateDir, "redis.sock")
	if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 || s.RedisAddr != path {
		t.Errorf("%s: %v %v, want a socket of mode 0600", path, info, err)
	}
	if err := s.Redis().Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	if log, line := s.Log(), "redis-cli -s "+path+" "; !strings.Contains(log, line) {
		t.Errorf("the banner does not print %q", line)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), filtered+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "nil") {
		t.Errorf("a process with a filter: %s, %v", out, err)
	}
	s.Stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// filtered is the variable that makes this test program put a seccomp filter on itself and call the Redis at that socket.
const filtered = "ATTACK_FILTERED"

// pingFiltered prints why a Redis does not answer, or what it answers.
func pingFiltered(path string) {
	runtime.LockOSThread()
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	prog := unix.SockFprog{Len: 1, Filter: &filter}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		const all = unix.SECCOMP_FILTER_FLAG_TSYNC // every thread
		_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, all, uintptr(unsafe.Pointer(&prog)))
		if e != 0 {
			err = e
		}
	}
	if err == nil {
		err = hostileAct("ping", path)
	}
	fmt.Println(err)
}

// A command line never comes from Redis, whoever writes there: neither a host's commands nor a recipe in the catalog,
// nor options that an engine's recipe does not allow.
func TestNoCommandComesFromRedis(t *testing.T) {
	server := testenv.StartRedis(t)
	s := testenv.Start(t, testenv.Spec{
		Redis: server, Models: calls.Catalogue{"m": "llm", "n": "llm"}.YAML(calls.LocalHost), Args: []string{"--max-loaded-models=1"},
	})
	rdb, ctx := s.Redis(), t.Context()
	mark := filepath.Join(t.TempDir(), "executed")
	ask := func(model string) calls.Answer {
		return call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody(model, 1, false))
	}
	if a := ask("m"); !a.OK() {
		t.Fatal(a)
	}
	const catalogue = "rv:{main}:catalog"
	right := rdb.HGetAll(ctx, catalogue).Val()
	command := `[["/bin/sh","-c","touch ` + mark + `"]]`
	forged := strings.ReplaceAll(right["json"], `"name":"standin"`, `"name":"standin","command":`+command)
	forged = strings.ReplaceAll(forged, `"driver":"local"`, `"driver":"exec","commands":{"wake":`+command+`,"sleep":`+command+`}`)
	for name, err := range map[string]error{
		"catalogue": rdb.HSet(ctx, catalogue, "version", "0123456789abcdef", "json", forged).Err(),
		"event":     rdb.Publish(ctx, "rv:{main}:events", `{"kind":"catalog","version":"0123456789abcdef"}`).Err(),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	warmer := exec.CommandContext(ctx, testenv.Build(t, "warmer"), "--redis-url=redis://"+server.Addr+"/0", "--runner-secret="+strings.Repeat("s", 32), "--once")
	if out, err := warmer.CombinedOutput(); err == nil || !strings.Contains(string(out), "not signed") {
		t.Errorf("the warmer took the catalog: %v %s", err, out)
	}
	if a := ask("n"); !a.OK() { // by the last catalog that was right
		t.Error("another model:", a)
	}
	if err := rdb.HSet(ctx, "rv:{main}:settings:options", "m", `{"args":"--log-file `+mark+`"}`, "n", `{"command":"touch `+mark+`"}`).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Publish(ctx, "rv:{main}:events", `{"kind":"settings","state":"options"}`).Err(); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"m", "n"} {
		_ = ask(model)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("something that Redis named was executed")
	}
}
