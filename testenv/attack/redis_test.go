package attack

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
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

// TestForgedRecords lets somebody who can write Redis, but does not have the runner secret, forge what gateways and runners
// act on. Nothing of it may be executed, and what was right goes on.
func TestForgedRecords(t *testing.T) {
	server := testenv.StartRedis(t)
	s := testenv.Start(t, testenv.Spec{Redis: server, Models: calls.Catalogue{"m": "llm", "n": "llm"}.YAML(calls.LocalHost), Args: []string{"--max-loaded-models=1"}})
	rdb := s.Redis()
	ctx := t.Context()
	mark := filepath.Join(t.TempDir(), "executed")
	ask := func(model string) {
		t.Helper()
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody(model, 1, false)); !a.OK() {
			t.Errorf("%s: %v", model, a)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ask("m")
	const catalogue = "rv:{main}:catalog"
	right := rdb.HGetAll(ctx, catalogue).Val()
	forged := strings.ReplaceAll(right["json"], `"name":"standin"`, `"name":"standin","command":[["/bin/sh","-c","touch `+mark+`"]]`)
	sum := sha256.Sum256([]byte(`{"version":"` + strings.TrimPrefix(forged, `{"version":"`+right["version"])))
	version := hex.EncodeToString(sum[:8])
	forged = strings.Replace(forged, right["version"], version, 1)
	huge := strings.Repeat("x", 20<<20)
	for name, forge := range map[string]func(){
		"a forged catalogue": func() { must(rdb.HSet(ctx, catalogue, "version", version, "json", forged).Err()) },
		"one with a MAC of another table": func() {
			must(rdb.HSet(ctx, catalogue, "version", version, "json", forged, "mac", strings.Repeat("0", 64)).Err())
		},
		"one without a MAC": func() {
			must(errors.Join(rdb.HSet(ctx, catalogue, "version", version, "json", forged).Err(), rdb.HDel(ctx, catalogue, "mac").Err()))
		},
		"a higher serial": func() {
			must(rdb.HSet(ctx, catalogue, "version", "0123456789abcdef", "serial", "18446744073709551615").Err())
		},
		"a list instead of it": func() { must(errors.Join(rdb.Del(ctx, catalogue).Err(), rdb.LPush(ctx, catalogue, "x").Err())) },
		"20 MB":                func() { must(rdb.HSet(ctx, catalogue, "version", "0123456789abcdef", "json", huge).Err()) },
		"saved options": func() {
			must(rdb.HSet(ctx, "rv:{main}:settings:options", "m", `{"args":"--need-file `+mark+`"}`, "n", `{"args":"--fail-load 100"}`).Err())
		},
		"saved options with a moved MAC": func() {
			must(rdb.HSet(ctx, "rv:{main}:settings:options", "n", `{"args":"--fail-load 100"}`).Err())
			must(rdb.HSet(ctx, "rv:{main}:settings:options:mac", "n", right["mac"]).Err())
		},
		"settings": func() {
			must(rdb.HSet(ctx, "rv:{main}:settings:runtime", "standin", `{"args":"--fail-load 100"}`, "max_loaded_models", "0").Err())
		},
		"settings of another type": func() {
			must(errors.Join(rdb.Del(ctx, "rv:{main}:settings:pins").Err(), rdb.Set(ctx, "rv:{main}:settings:pins", "x", 0).Err()))
		},
		"aliases": func() { must(rdb.HSet(ctx, "rv:{main}:settings:aliases", "alias", "m").Err()) },
		"a registered model": func() {
			must(rdb.HSet(ctx, "rv:{main}:settings:registered", "user.evil", `{"id":"user.evil","type":"llm","recipe":"standin","devices":"cpu","mm_cache":"pool","replicas":{"max":1},"options":{"args":"--need-file `+mark+`"}}`).Err())
		},
	} {
		forge()
		must(rdb.Publish(ctx, "rv:{main}:events", `{"kind":"catalog","version":"`+version+`"}`).Err())
		for _, table := range []string{"options", "runtime", "aliases", "registered", "pins"} {
			must(rdb.Publish(ctx, "rv:{main}:events", `{"kind":"settings","state":"`+table+`"}`).Err())
		}
		t.Log(name)
		ask("n") // each needs a load of its own, in the only slot
		ask("m")
		must(rdb.Del(ctx, catalogue).Err())
		must(rdb.HSet(ctx, catalogue, right).Err())
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("something that Redis named was executed")
	}
	for _, name := range []string{"alias", "user.evil"} {
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody(name, 1, false)); a.Status != 404 {
			t.Errorf("the forged name %s: %v", name, a)
		}
	}
	health := call(t, "GET", s.URL+"/v1/health", "")
	if !strings.Contains(string(health.Body), `"settings:options"`) {
		t.Errorf("health does not tell of refused records: %s", health.Body)
	}
	if n := strings.Count(s.Log(), "record=settings:options"); n < 1 || n > 10 {
		t.Errorf("%d lines of the log tell of the saved options", n)
	}
}

// TestForgedAddress points a host at another address. No request may go there.
func TestForgedAddress(t *testing.T) {
	server := testenv.StartRedis(t)
	s := testenv.Start(t, testenv.Spec{Redis: server, Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)})
	trap := newCanary(t)
	rdb := s.Redis()
	for range 5 {
		if err := rdb.HSet(t.Context(), "rv:{main}:host:local", "addr", strings.TrimPrefix(trap.URL, "http://")).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Publish(t.Context(), "rv:{main}:events", `{"kind":"host","host":"local","state":"ready"}`).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false)); !a.OK() {
			t.Errorf("while the address is forged: %v", a)
		}
	}
}

// TestReplayedCatalogue puts an older, rightly signed catalogue back. Readers do not follow it, and the gateway mends it.
func TestReplayedCatalogue(t *testing.T) {
	server := testenv.StartRedis(t)
	s := testenv.Start(t, testenv.Spec{Redis: server, Models: calls.Catalogue{"m": "llm", "old": "llm"}.YAML(calls.LocalHost)})
	rdb := s.Redis()
	const catalogue = "rv:{main}:catalog"
	kit.Becomes(t, "a signed catalogue", true, func() bool { return rdb.HGet(t.Context(), catalogue, "mac").Val() != "" })
	old := rdb.HGetAll(t.Context(), catalogue).Val()
	s.SetModels(calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost))
	kit.Becomes(t, "the newer catalogue", true, func() bool { return rdb.HGet(t.Context(), catalogue, "version").Val() != old["version"] })
	if err := rdb.HSet(t.Context(), catalogue, old).Err(); err != nil {
		t.Fatal(err)
	}
	if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false)); !a.OK() {
		t.Error(a)
	}
	kit.Becomes(t, "the catalogue published anew", true, func() bool {
		m := rdb.HGetAll(t.Context(), catalogue).Val()
		return m["version"] != old["version"] && m["serial"] > old["serial"]
	})
}

// TestForgedOptionsDoNotPlace forges saved options and run-time settings by which models would need a device that no host
// has. Gateway and warmer place them as before, and once the owner saves such options they count.
func TestForgedOptionsDoNotPlace(t *testing.T) {
	const recipes = `recipes:
  choice:
    inherit: standin
    backend_option: choice_backend
    backends: {cpu: {devices: cpu}, npu: {devices: npu}}
    options: {choice_backend: {kind: string, values: [cpu, npu]}}
`
	server := testenv.StartRedis(t)
	s := testenv.Start(t, testenv.Spec{Redis: server, Models: calls.Catalogue{"m": "llm, recipe: choice"}.YAML("hosts:\n  local: {driver: local, devices: [cpu]}\n" + recipes)})
	rdb, key := s.Redis(), s.AdminKey()
	forge := func(table, name, value string) {
		t.Helper()
		if err := errors.Join(rdb.HSet(t.Context(), "rv:{main}:settings:"+table, name, value).Err(),
			rdb.Publish(t.Context(), "rv:{main}:events", `{"kind":"settings","state":"`+table+`"}`).Err()); err != nil {
			t.Fatal(err)
		}
	}
	refusedRecords := func() string {
		var h struct {
			Refused []string `json:"state_refused"`
		}
		_ = json.Unmarshal(call(t, "GET", s.URL+"/v1/health", "", bearer(key)).Body, &h)
		return strings.Join(h.Refused, " ")
	}
	fresh := func(what string, status int) {
		t.Helper()
		if a := call(t, "POST", s.URL+"/v1/unload", `{}`); !a.OK() {
			t.Fatal(a)
		}
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false)); a.Status != status {
			t.Errorf("%s: %v, want %d", what, a, status)
		}
	}
	forge("options", "m", `{"choice_backend":"npu"}`)
	kit.Becomes(t, "the refusal of the options", "settings:options", refusedRecords)
	fresh("with forged options", 200)
	forge("runtime", "choice", `{"backend":"npu"}`)
	kit.Becomes(t, "the refusal of both", "settings:options settings:runtime", refusedRecords)
	fresh("with forged settings", 200)
	if a := call(t, "POST", s.URL+"/v1/models/m/options", `{"choice_backend":"npu"}`, bearer(key)); !a.OK() {
		t.Fatal(a)
	}
	kit.Becomes(t, "the options that the owner saved", "settings:runtime", refusedRecords)
	fresh("with the owner's options", 503)
}
