package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/imds"
)

const (
	bootTime = 4 * time.Minute // longest that a machine's scripts may take with all that they wait for
	haltTime = time.Minute     // longest that a service may take to end
)

// machine is an EC2 instance as this computer plays it. Its user data is run by bash as it is, but for two things: the
// folders of a system are below one of the test, and what needs root, systemd or the internet is a stub. The units that
// are started are programs of the test, with the environment that their files say.
//
// Its methods must be called by the test's goroutine.
type machine struct {
	t        *testing.T
	name     string
	root     string
	address  string   // what its programs listen at who listen at all addresses
	env      []string // of all programs, over the test's
	metadata *imds.Service

	services map[string]*testenv.Program // by unit, those that run
	enabled  []string                    // units that start at boot
	calls    chan systemctl
	ended    chan script
	open     int // scripts that have not ended
}

// systemctl is one call of a script, which waits for the reply.
type systemctl struct {
	args  []string
	reply chan error // capacity 1
}

// script is one that has ended.
type script struct {
	name string
	out  []byte
	err  error
	wait chan error // who waits for its end; nil for nobody
}

// stubs are the commands of a machine that would change this computer; an empty one does nothing.
var stubs = map[string]string{
	"chgrp":   "",
	"dd":      `for word; do case $word in of=*) : >"${word#of=}" ;; esac; done`,
	"dnf":     "",
	"dpkg":    "",
	"getent":  "",
	"mkswap":  "",
	"swapon":  "",
	"sleep":   `exec /bin/sleep $(($1 > 5 ? 1 : $1))` + "\n",
	"useradd": "",
	"usermod": "",
	"sync":    "",
	"install": `args=()
while (($#)); do case $1 in -o | -g) shift ;; *) args+=("$1") ;; esac; shift; done
PATH=${PATH#*:}
exec install "${args[@]}"
`,
	"aws":       remote,
	"systemctl": remote,
}

// remote is a command that the test runs: its words are posted, the response is what it prints.
const remote = `words=()
for word; do words+=(--data-urlencode "args=$word"); done
exec curl -s --fail-with-body "${words[@]}" "$MACHINE/${0##*/}"
`

// machine makes a machine of the cloud that is off. metadata is what its metadata service tells beside the credentials of its
// role, env are variables of its programs.
func (c *cloud) machine(name, address string, role aws.Role, metadata map[string]string, env ...string) *machine {
	t := c.t
	t.Helper()
	m := &machine{
		t: t, name: name, root: t.TempDir(), address: address, metadata: imds.Start(t, metadata),
		services: map[string]*testenv.Program{}, calls: make(chan systemctl), ended: make(chan script, 8),
	}
	m.metadata.Set(imds.Region, "us-east-1")
	m.metadata.Set("iam/security-credentials/", "role")
	credentials, err := json.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	m.metadata.Set("iam/security-credentials/role", string(credentials))
	commands := http.NewServeMux()
	commands.Handle("POST /aws", cli{c.ConfigAs(role)})
	commands.HandleFunc("POST /systemctl", m.serveSystemctl)
	control := httptest.NewServer(commands)
	t.Cleanup(control.Close)
	bin, agent := m.path("/bin"), m.path("/opt/aws/amazon-cloudwatch-agent/bin")
	m.env = append([]string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + m.root, "MACHINE=" + control.URL,
		imds.Endpoint + "=" + m.metadata.URL, "AWS_EC2_METADATA_DISABLED=false", "AWS_ENDPOINT_URL=" + c.URL,
	}, env...)
	for _, dir := range []string{bin, agent, m.path(units), m.path("/etc/logrotate.d"), m.path("/var/lib")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte("#!/bin/bash\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for command, text := range stubs {
		put(filepath.Join(bin, command), text)
	}
	put(filepath.Join(agent, "amazon-cloudwatch-agent-ctl"), "")
	return m
}

// path is where a path of the machine is on this computer.
func (m *machine) path(of string) string { return filepath.Join(m.root, of) }

// firstBoot runs user data. All that it starts, and all that that waits for, has been done when it returns.
func (m *machine) firstBoot(userData string) {
	m.t.Helper()
	m.write(m.script(userData))
	m.begin("user data", m.path(scriptFile), nil)
	if err := m.work(); err != nil {
		m.t.Fatal(err)
	}
}

// scriptFile is where cloud-init keeps the script of user data here.
const scriptFile = "/user-data"

// cutShort runs user data until its n-th command, at which the machine loses its power.
func (m *machine) cutShort(userData string, n int) {
	m.t.Helper()
	m.write(fmt.Sprintf("trap 'if ((++commands == %d)); then kill -KILL $$; fi' DEBUG\n", n) + m.script(userData))
	m.begin("user data", m.path(scriptFile), nil)
	if err := m.work(); err == nil || !strings.Contains(err.Error(), "killed") {
		m.t.Fatalf("%s: user data was to be cut short at command %d: %v", m.name, n, err)
	}
	m.off()
}

func (m *machine) write(script string) {
	m.t.Helper()
	if err := os.WriteFile(m.path(scriptFile), []byte(script), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// script is the shell script of user data, which must tell cloud-init to run it at every boot.
func (m *machine) script(userData string) string {
	m.t.Helper()
	message, err := mail.ReadMessage(strings.NewReader(userData))
	if err != nil {
		m.t.Fatal(err)
	}
	_, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		m.t.Fatal(err)
	}
	parts := map[string]string{}
	for r := multipart.NewReader(message.Body, params["boundary"]); ; {
		p, err := r.NextPart()
		if err == io.EOF {
			break
		}
		var text []byte
		if err == nil {
			text, err = io.ReadAll(p)
		}
		if err != nil {
			m.t.Fatal(err)
		}
		kind, _, _ := strings.Cut(p.Header.Get("Content-Type"), ";")
		parts[kind] = string(text)
	}
	if !strings.HasPrefix(parts["text/cloud-config"], "#cloud-config\n") || !strings.Contains(parts["text/cloud-config"], "- [scripts-user, always]\n") {
		m.t.Fatalf("user data does not run at every boot:\n%s", userData)
	}
	return strings.NewReplacer(
		"/opt/", m.path("/opt")+"/", "/etc/", m.path("/etc")+"/", "/var/", m.path("/var")+"/", "/run/reveille", m.path("/run/reveille"),
		"0.0.0.0:", m.address+":",
	).Replace(parts["text/x-shellscript"])
}

// boot starts what is enabled and runs user data again, as every boot after the first does.
func (m *machine) boot() {
	m.t.Helper()
	if err := m.tryBoot(); err != nil {
		m.t.Fatal(err)
	}
}

// tryBoot is boot; the error tells of scripts that failed.
func (m *machine) tryBoot() error {
	m.t.Helper()
	for _, name := range m.enabled {
		if err := m.start(name, nil); err != nil {
			m.t.Fatalf("%s: %s: %v", m.name, name, err)
		}
	}
	m.begin("user data", m.path(scriptFile), nil)
	return m.work()
}

// off turns the machine off: services end, and what is not on its disk is gone.
func (m *machine) off() {
	m.t.Helper()
	for name := range m.services {
		m.halt(name)
	}
	if err := os.RemoveAll(m.path("/run")); err != nil {
		m.t.Fatal(err)
	}
}

// begin runs a script in the background; work takes its end.
func (m *machine) begin(name, path string, wait chan error) {
	m.open++
	cmd := exec.CommandContext(m.t.Context(), "/bin/bash", path)
	cmd.Env = slices.Concat(os.Environ(), m.env, m.variables(name))
	cmd.WaitDelay = time.Second
	go func() {
		out, err := cmd.CombinedOutput()
		m.ended <- script{name, out, err, wait}
	}()
}

// work answers scripts until all have ended, those among them that they had systemctl start. The error tells of those that
// failed.
func (m *machine) work() (failed error) {
	m.t.Helper()
	for late := time.After(bootTime); m.open > 0; {
		select {
		case s := <-m.ended:
			m.open--
			if len(s.out) > 0 {
				m.t.Logf("%s: %s:\n%s", m.name, s.name, s.out)
			}
			if s.err != nil {
				s.err = fmt.Errorf("%s: %s: %w: %s", m.name, s.name, s.err, s.out)
			}
			failed = errors.Join(failed, s.err)
			if s.wait != nil {
				s.wait <- s.err
			}
		case call := <-m.calls:
			m.systemctl(call)
		case <-late:
			m.t.Fatalf("%s: not ready in %v", m.name, bootTime)
		}
	}
	return failed
}

// serveSystemctl hands a call to the test's goroutine.
func (m *machine) serveSystemctl(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm() // no words, no verb
	call := systemctl{r.Form["args"], make(chan error, 1)}
	select {
	case m.calls <- call:
	case <-r.Context().Done():
		return
	}
	select {
	case err := <-call.reply:
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	case <-r.Context().Done():
	}
}

// systemctl does what a script asks for. The reply to the start of a script comes at its end.
func (m *machine) systemctl(call systemctl) {
	flags := slices.DeleteFunc(slices.Clone(call.args), func(a string) bool { return !strings.HasPrefix(a, "--") })
	words := slices.DeleteFunc(slices.Clone(call.args), func(a string) bool { return strings.HasPrefix(a, "--") })
	if len(words) == 0 {
		call.reply <- errors.New("systemctl: no verb")
		return
	}
	verb, names := words[0], words[1:]
	switch verb {
	case "daemon-reload":
	case "enable":
		for _, name := range names {
			if !slices.Contains(m.enabled, name) {
				m.enabled = append(m.enabled, name)
			}
		}
		if !slices.Contains(flags, "--now") {
			names = nil
		}
	case "start":
	case "stop":
		for _, name := range names {
			m.halt(name)
		}
		names = nil
	default:
		call.reply <- fmt.Errorf("systemctl %s: not played here", verb)
		return
	}
	wait := call.reply
	if slices.Contains(flags, "--no-block") {
		wait = nil
	}
	before := m.open
	for _, name := range names {
		if err := m.start(name, wait); err != nil {
			m.t.Errorf("%s: %s: %v", m.name, name, err)
			call.reply <- err
			return
		}
	}
	if wait == nil || m.open == before {
		call.reply <- nil
	}
}

// start starts a unit: a script begins, a service runs, a timer is not played.
func (m *machine) start(name string, wait chan error) error {
	u := m.unit(name)
	switch {
	case u == nil:
		return errors.New("there is no such unit")
	case strings.HasSuffix(name, ".timer"):
	case u["Type"] == "oneshot":
		m.begin(name, u["ExecStart"], wait)
	default:
		command := strings.Fields(u["ExecStart"])
		m.services[name] = testenv.StartProgramEnv(m.t, append(slices.Clip(m.env), m.variables(name)...),
			m.name+"-"+strings.TrimSuffix(name, ".service"), command[0], command[1:]...)
	}
	return nil
}

// units is the folder of a machine's units.
const units = "/etc/systemd/system"

// unit reads a unit's file and its drop-in; nil when there is none.
func (m *machine) unit(name string) map[string]string {
	text, err := os.ReadFile(filepath.Join(m.path(units), name))
	if err != nil {
		return nil
	}
	if more, err := os.ReadFile(filepath.Join(m.path(units), name+".d", "aws.conf")); err == nil {
		text = append(text, more...)
	}
	u := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			u[k] = strings.TrimSpace(u[k] + " " + v)
		}
	}
	return u
}

// variables is the environment that a unit and its files say, nothing for what is no unit.
func (m *machine) variables(name string) []string {
	env := strings.Fields(m.unit(name)["Environment"])
	for _, file := range strings.Fields(m.unit(name)["EnvironmentFile"]) {
		text, err := os.ReadFile(file)
		if err != nil {
			m.t.Errorf("%s: %s: %v", m.name, name, err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.ContainsAny(line, "\"'\\") {
				m.t.Errorf("%s: %s: systemd would not take this as it is: %s", m.name, file, line)
			}
			env = append(env, strings.TrimSpace(line))
		}
	}
	return env
}

// service is a unit's program; the test fails when it does not run.
func (m *machine) service(name string) *testenv.Program {
	m.t.Helper()
	p := m.services[name]
	if p == nil {
		m.t.Fatalf("%s: %s does not run", m.name, name)
	}
	return p
}

// halt ends a service as systemd does; one that does not run stays so.
func (m *machine) halt(name string) {
	p := m.services[name]
	if p == nil {
		return
	}
	delete(m.services, name)
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Exited():
	case <-time.After(haltTime):
		m.t.Errorf("%s: %s has not ended %v after SIGTERM", m.name, name, haltTime)
		p.Kill()
	}
}
