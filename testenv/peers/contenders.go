package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"reveille/testenv"
)

// kind says how a contender is started, on the port, over the engine at addr or one of its own; folder is its own.
type kind struct {
	name  string
	start func(c *contender, folder, port, engine string) error
}

// contender is what runs.
type contender struct {
	name, addr string
	pids       []int
	started    []*exec.Cmd
}

var kinds = []kind{
	{"engine alone", func(c *contender, _, _, engine string) error {
		c.addr = engine
		return nil
	}},
	{"nginx", startNginx},
	{"fasthttp", func(c *contender, _, port, engine string) error { return c.run(nil, self(), "relay", port, engine) }},
	{"gateway run", func(c *contender, folder, port, _ string) error {
		models, err := write(folder, "models.yaml", modelsFile("local: {driver: local, devices: [cpu]}"))
		if err != nil {
			return err
		}
		return c.run(nil, "bin/gateway", "run", "--addr=127.0.0.1:"+port, "--models="+models, "--state-dir="+folder)
	}},
	{"gateway and runner", startBoth},
}

// begin starts a contender with an engine of its own and returns when it has answered.
func (k kind) begin(folder string) (*contender, error) {
	folder = filepath.Join(folder, strings.ReplaceAll(k.name, " ", ""))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	before := children()
	engine, port := freePort(), freePort()
	c := &contender{name: k.name, addr: "127.0.0.1:" + port}
	err := c.run(nil, self(), "engine", "--port", engine)
	if err == nil {
		err = k.start(c, folder, port, "127.0.0.1:"+engine)
	}
	for end := time.Now().Add(time.Minute); err == nil; time.Sleep(20 * time.Millisecond) {
		if err = c.answers(); err == nil {
			break
		}
		if time.Now().Before(end) {
			err = nil
		}
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	c.pids = slices.DeleteFunc(children(), func(pid int) bool { return slices.Contains(before, pid) })
	return c, nil
}

// answers asks once.
func (c *contender) answers() error {
	resp, err := http.Post("http://"+c.addr+path, "application/json", strings.NewReader(works[0].body))
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// run starts a program that ends with this one.
func (c *contender) run(env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if _, err := testenv.StartChild(cmd); err != nil {
		return err
	}
	c.started = append(c.started, cmd)
	return nil
}

// stop ends what run has started, the last first.
func (c *contender) stop() {
	for _, cmd := range slices.Backward(c.started) {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
}

func startNginx(c *contender, folder, port, engine string) error {
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	file, err := write(folder, "nginx.conf", user+`
daemon off; pid pid; error_log stderr crit; worker_processes auto; worker_rlimit_nofile 20000;
events { worker_connections 16384; }
http {
  access_log off; keepalive_requests 1000000000; client_max_body_size 0;
  client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;
  upstream engine { server `+engine+`; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:`+port+` backlog=4096;
    location / {
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 1h;
    }
  }
}
`)
	if err != nil {
		return err
	}
	return c.run(nil, "nginx", "-e", "stderr", "-p", folder, "-c", file)
}

func startBoth(c *contender, folder, port, _ string) error {
	redis, runner := freePort(), freePort()
	models, err := write(folder, "models.yaml",
		modelsFile(`h: {driver: exec, address: "127.0.0.1:`+runner+`", devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}`))
	if err != nil {
		return err
	}
	recipes, err := write(folder, "recipes.yaml", recipesFile())
	if err != nil {
		return err
	}
	env := []string{"REVEILLE_REDIS_URL=redis://127.0.0.1:" + redis, "REVEILLE_RUNNER_SECRET=peers-peers-peers-peers-peers-peers"}
	return errors.Join(
		c.run(nil, "redis-server", "--port", redis, "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--logfile", "log"),
		c.run(env, "bin/runner", "--runner-addr=127.0.0.1:"+runner, "--host=h", "--state-dir="+folder, "--devices=cpu", "--recipes="+recipes),
		c.run(env, "bin/gateway", "serve", "--addr=127.0.0.1:"+port, "--models="+models),
	)
}

// modelsFile has the engine as a model, and a host.
func modelsFile(host string) string {
	return "models:\n  one: {type: llm, recipe: bare, device: cpu, options: {n_parallel: 16384}}\nhosts:\n  " + host + "\n" + recipesFile()
}

// recipesFile says how many requests the engine takes at a time, as runners bound them otherwise.
func recipesFile() string {
	return fmt.Sprintf(`
recipes:
  bare:
    inherit: standin
    command: [%q, engine, [--host, "{host}"], [--port, "{port}"]]
    options: {n_parallel: {kind: int, min: 1, max: 16384}}
`, self())
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

func write(folder, name, text string) (string, error) {
	file := filepath.Join(folder, name)
	return file, os.WriteFile(file, []byte(text), 0o600)
}

func freePort() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()
	return strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
}
