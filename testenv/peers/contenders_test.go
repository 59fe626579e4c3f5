package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// Names of the contenders.
const (
	direct    = "direct"
	nginx     = "nginx"
	haproxy   = "haproxy"
	relay     = "bare relay"
	relays    = "two bare relays"
	fast      = "bare fasthttp"
	llamaSwap = "llama-swap"
	one       = "gateway run"
	both      = "gateway and runner"
	plain     = "plain llama-server"
)

// swapSource is llama-swap v250 as a Go module.
const swapSource = "github.com/mostlygeek/llama-swap@v0.0.0-20260814154540-60226b63776e"

// running is a contender that was started.
type running struct {
	addr     string
	pids     []int          // without engines
	commands func() float64 // how many its Redis has had; 0 without
}

// contender starts what is compared, over the engine at addr or one of its own, until the test ends. An error says why it
// cannot be had on this machine.
type contender struct {
	name  string
	start func(t *testing.T, engine string) (addr string, err error)
}

var contenders = []contender{
	{direct, func(_ *testing.T, engine string) (string, error) { return engine, nil }},
	{nginx, startNginx},
	{haproxy, startHAProxy},
	{relay, func(t *testing.T, engine string) (string, error) { return startBare(t, "relay", engine), nil }},
	{relays, func(t *testing.T, engine string) (string, error) {
		return startBare(t, "relay", startBare(t, "relay", engine)), nil
	}},
	{fast, func(t *testing.T, engine string) (string, error) { return startBare(t, "fasthttp", engine), nil }},
	{llamaSwap, startLlamaSwap},
	{one, startOne},
	{both, startBoth},
}

// run starts a contender and warms it with one request.
func (c contender) run(t *testing.T, engine string) (*running, error) {
	t.Helper()
	before := pids(family())
	addr, err := c.start(t, engine)
	if err != nil {
		return nil, err
	}
	r := &running{addr: addr, commands: func() float64 { return 0 }}
	var last error
	kit.Eventually(t, c.name+" answers", func() bool {
		last = probe(addr, "one")
		return last == nil
	})
	r.pids = slices.DeleteFunc(pids(family()), func(pid int) bool { return slices.Contains(before, pid) })
	if c.name == both {
		r.commands = commandsOf(t, r.pids)
	}
	return r, nil
}

// probe asks once.
func probe(addr, model string) error {
	path, body := chat, string(question(100, `"max_tokens":1,`))
	if model != "one" {
		path, body = "/v1/embeddings", `{"model":"`+model+`","input":"word"}`
	}
	resp, err := http.Post("http://"+addr+path, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// spawn starts a program that ends with the test, or with this process by the signal.
func spawn(t *testing.T, signal syscall.Signal, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: signal}
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	exited, err := testenv.StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		if t.Failed() {
			text, _ := os.ReadFile(out.Name())
			t.Logf("%v wrote:\n%s", cmd.Args, text[max(0, len(text)-4<<10):])
		}
	})
}

func freeAddr(t *testing.T) (addr, port string) {
	t.Helper()
	port = strconv.Itoa(testenv.FreePort(t))
	return net.JoinHostPort("127.0.0.1", port), port
}

func bare(t *testing.T) string { return testenv.Build(t, "testenv/peers/bare") }

func startEngine(t *testing.T) string {
	addr, port := freeAddr(t)
	spawn(t, syscall.SIGKILL, exec.Command(bare(t), "engine", "--port", port))
	return addr
}

func startBare(t *testing.T, role, upstream string) string {
	addr, port := freeAddr(t)
	spawn(t, syscall.SIGKILL, exec.Command(bare(t), role, port, upstream))
	kit.Eventually(t, role+" listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return addr
}

// folder keeps programs that were fetched.
func folder(t *testing.T) string {
	dir := filepath.Join(testenv.Root(t), ".cache", "peers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// debian finds a program, or unpacks it from Debian packages, which installs nothing.
func debian(t *testing.T, program, version string, packages ...string) (*exec.Cmd, error) {
	dir := folder(t)
	path, err := exec.LookPath(program)
	if err != nil {
		path = filepath.Join(dir, "usr", "sbin", program)
	}
	if _, err := os.Stat(path); err != nil {
		cmd := exec.Command("sh", "-ec", `apt-get download -q "$@"; for p in *.deb; do dpkg -x "$p" .; done; rm -f ./*.deb`, "sh")
		cmd.Args, cmd.Dir = append(cmd.Args, packages...), dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s is not installed and cannot be fetched: %w: %s", program, err, lastLine(out))
		}
	}
	libraries, _ := filepath.Glob(filepath.Join(dir, "usr", "lib", "*-linux-gnu"))
	env := append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	check := exec.Command(path, version)
	check.Env = env
	if out, err := check.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s does not run: %w: %s", program, err, lastLine(out))
	}
	cmd := exec.Command(path)
	cmd.Env = env
	return cmd, nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// write makes a file of a text in a folder of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func startNginx(t *testing.T, engine string) (string, error) {
	cmd, err := debian(t, nginx, "-v", "nginx")
	if err != nil {
		return "", err
	}
	addr, _ := freeAddr(t)
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	dir := t.TempDir()
	file := write(t, "nginx.conf", user+`
daemon off; pid `+dir+`/pid; error_log stderr crit; worker_processes auto; worker_rlimit_nofile 20000;
events { worker_connections 16384; }
http {
  access_log off; keepalive_requests 1000000000; client_max_body_size 0;
  client_body_temp_path `+dir+`/a; proxy_temp_path `+dir+`/b; fastcgi_temp_path `+dir+`/c; uwsgi_temp_path `+dir+`/d; scgi_temp_path `+dir+`/e;
  upstream engine { server `+engine+`; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen `+addr+` backlog=4096;
    location / {
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 1h;
    }
  }
}
`)
	cmd.Args = append(cmd.Args, "-e", "stderr", "-p", dir, "-c", file)
	spawn(t, syscall.SIGTERM, cmd)
	return addr, nil
}

func startHAProxy(t *testing.T, engine string) (string, error) {
	cmd, err := debian(t, haproxy, "-v", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
	if err != nil {
		return "", err
	}
	addr, _ := freeAddr(t)
	file := write(t, "haproxy.cfg", fmt.Sprintf(`
global
  maxconn 9000
  nbthread %d
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend front
  bind %s backlog 4096
  default_backend engine
backend engine
  server engine %s
`, runtime.NumCPU(), addr, engine))
	cmd.Args = append(cmd.Args, "-db", "-f", file)
	spawn(t, syscall.SIGKILL, cmd)
	return addr, nil
}

// buildLlamaSwap finds llama-swap or builds it from its module, with an empty page in place of its own, which the module lacks.
func buildLlamaSwap(t *testing.T) (string, error) {
	target := filepath.Join(folder(t), llamaSwap)
	if path, err := exec.LookPath(llamaSwap); err == nil {
		return path, nil
	}
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	dir := t.TempDir()
	download := exec.Command("go", "mod", "download", "-json", swapSource)
	download.Dir = dir
	out, err := download.Output()
	var module struct{ Dir, Error string }
	if e := json.Unmarshal(out, &module); e != nil || err != nil || module.Error != "" {
		return "", fmt.Errorf("%s cannot be fetched: %v %s", swapSource, err, module.Error)
	}
	page := filepath.Join(dir, "internal", "server", "ui_dist")
	if err := errors.Join(os.CopyFS(dir, os.DirFS(module.Dir)), os.MkdirAll(page, 0o755), os.WriteFile(filepath.Join(page, "index.html"), nil, 0o644)); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", target, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not build: %w: %s", swapSource, err, lastLine(out))
	}
	return target, nil
}

func startLlamaSwap(t *testing.T, _ string) (string, error) {
	path, err := buildLlamaSwap(t)
	if err != nil {
		return "", err
	}
	addr, _ := freeAddr(t)
	_, port := freeAddr(t)
	file := write(t, "llama-swap.yaml", fmt.Sprintf(`
logLevel: error
models:
  one: {cmd: %s engine --port %s, proxy: "http://127.0.0.1:%s", concurrencyLimit: 100000}
`, bare(t), port, port))
	spawn(t, syscall.SIGKILL, exec.Command(path, "-config", file, "-listen", addr))
	return addr, nil
}

// models is a models file with the engine of the comparison and a host.
func models(t *testing.T, host string) string {
	return fmt.Sprintf(`
models:
  one: {type: llm, recipe: bare, device: cpu, options: {n_parallel: 16384}}
  minilm: {type: embedding, recipe: llamacpp, checkpoint: .cache/models/minilm-l6-v2.gguf, device: cpu}
hosts:
  %s
%s`, host, recipes(t))
}

// recipes has the engine of the comparison. It says how many requests it takes at a time, as runners bound them otherwise.
func recipes(t *testing.T) string {
	return fmt.Sprintf(`
recipes:
  bare:
    inherit: standin
    command: [%q, engine, [--host, "{host}"], [--port, "{port}"]]
    options: {n_parallel: {kind: int, min: 1, max: 16384}}
`, bare(t))
}

func startOne(t *testing.T, _ string) (string, error) {
	s := testenv.Start(t, testenv.Spec{Models: models(t, "local: {driver: local, devices: [cpu]}")})
	return strings.TrimPrefix(s.URL, "http://"), nil
}

func startBoth(t *testing.T, _ string) (string, error) {
	const secret = "peers-peers-peers-peers-peers-peers"
	url := "redis://" + testenv.Redis(t) + "/0"
	_, addr := testenv.StartRunner(t, url, secret, "h", t.TempDir(), "--devices=cpu", "--recipes="+write(t, "recipes.yaml", recipes(t)))
	gateway := testenv.StartGateway(t, url, secret, models(t, `h: {driver: exec, address: "`+addr+`", devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}`))
	return strings.TrimPrefix(gateway.URL, "http://"), nil
}

// commandsOf counts the commands of the redis-server among processes.
func commandsOf(t *testing.T, among []int) func() float64 {
	for _, p := range family() {
		title := strings.Fields(p.Args) // /usr/bin/redis-server 127.0.0.1:6379
		if !slices.Contains(among, p.PID) || len(title) < 2 || filepath.Base(title[0]) != "redis-server" {
			continue
		}
		c := redis.NewClient(&redis.Options{Addr: title[1]})
		t.Cleanup(func() { _ = c.Close() })
		return func() float64 {
			info, _ := c.InfoMap(t.Context(), "stats").Result()
			n, _ := strconv.ParseFloat(info["Stats"]["total_commands_processed"], 64)
			return n
		}
	}
	t.Error("the gateway and runner have no redis-server")
	return func() float64 { return nan }
}

// startPlain starts llama-server by hand, with its defaults.
func startPlain(t *testing.T) string {
	addr, port := freeAddr(t)
	spawn(t, syscall.SIGKILL, exec.Command(testenv.Engines(t).LlamaServer, "--model", testenv.Models(t).MiniLM, "--embedding", "--device", "none", "--host", "127.0.0.1", "--port", port))
	return addr
}
