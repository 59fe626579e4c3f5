package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
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
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestMain also acts as the program that tries to escape from its sandbox.
func TestMain(m *testing.M) {
	if text := os.Getenv("SANDBOX_TEST_TRY"); text != "" {
		var w world
		if err := json.Unmarshal([]byte(text), &w); err != nil {
			panic(err)
		}
		out := map[string]string{}
		for name, attempt := range attempts {
			if len(w.Only) == 0 && !strings.HasPrefix(name, "bomb") || slices.Contains(w.Only, name) {
				out[name] = "ok"
				if err := attempt(w); err != nil {
					out[name] = err.Error()
				}
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(out)
		os.Exit(0)
	}
	if os.Getenv("SANDBOX_TEST_RUNNER") != "" {
		runner()
	}
	os.Exit(m.Run())
}

// runner starts an engine, prints its PID and user, and waits to be killed.
func runner() {
	s, err := New(Config{Mode: Auto, Memory: 1 << 30, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("/bin/sleep", "1000")
	if _, err := s.Start(cmd, Permissions{Program: "/bin/sleep"}, nil); err != nil {
		panic(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", cmd.Process.Pid), &st); err != nil {
		panic(err)
	}
	fmt.Println(cmd.Process.Pid, st.Uid)
	select {}
}

// world tells the confined program about its surroundings.
type world struct {
	Only                             []string
	Model, Other, Secret, Dir, Sock  string
	Port, Free, TCP, UDP, Runner, Up int
	SetUID                           string
}

// attempts maps a name to a function that tries it and returns nil on success.
var attempts = map[string]func(w world) error{
	"read model":     func(w world) error { _, err := os.ReadFile(w.Model); return err },
	"read device":    func(world) error { f, err := os.OpenFile("/dev/null", os.O_RDWR, 0); _ = f.Close(); return err },
	"read proc":      func(world) error { _, err := os.ReadFile("/proc/cpuinfo"); return err },
	"write own":      func(w world) error { return os.WriteFile(filepath.Join(w.Dir, "x"), []byte("x"), 0o600) },
	"listen own":     func(w world) error { return listen(w.Port) },
	"runner socket":  func(w world) error { _, err := net.Dial("unix", w.Sock); return err },
	"exec":           func(world) error { return exec.Command("/bin/true").Run() },
	"thread":         func(world) error { onThread(func() {}); return nil },
	"read other":     func(w world) error { _, err := os.ReadFile(w.Other); return err },
	"read secret":    func(w world) error { _, err := os.ReadFile(w.Secret); return err },
	"list secrets":   func(w world) error { _, err := os.ReadDir(filepath.Dir(w.Secret)); return err },
	"write model":    func(w world) error { return os.WriteFile(w.Model, nil, 0o600) },
	"write outside":  func(w world) error { return os.WriteFile(w.Other+".new", nil, 0o600) },
	"write tmp":      func(w world) error { return os.WriteFile("/tmp/reveille-sandbox-escape", nil, 0o600) },
	"remove model":   func(w world) error { return os.Remove(w.Model) },
	"shadow":         func(world) error { _, err := os.ReadFile("/etc/shadow"); return err },
	"memory of PID":  func(w world) error { _, err := os.ReadFile(fmt.Sprintf("/proc/%d/mem", w.Runner)); return err },
	"environ of PID": func(w world) error { _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.Runner)); return err },
	"files of PID":   func(w world) error { _, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/etc", w.Runner)); return err },
	"kill PID":       func(w world) error { return syscall.Kill(w.Runner, 0) },
	"ptrace PID":     func(w world) error { return syscall.PtraceAttach(w.Runner) },
	"listen else":    func(w world) error { return listen(w.Free) },
	"tcp":            func(w world) error { return dial(unix.SOCK_STREAM, 0, w.TCP) },
	"mptcp":          func(w world) error { return dial(unix.SOCK_STREAM, unix.IPPROTO_MPTCP, w.TCP) },
	"udp":            func(w world) error { return dial(unix.SOCK_DGRAM, 0, w.UDP) },
	"icmp":           func(w world) error { return dial(unix.SOCK_DGRAM, unix.IPPROTO_ICMP, w.UDP) },
	"raw":            func(w world) error { return dial(unix.SOCK_RAW, unix.IPPROTO_RAW, w.UDP) },
	"sctp":           func(w world) error { return dial(unix.SOCK_STREAM, unix.IPPROTO_SCTP, w.TCP) },
	"dns":            func(world) error { _, err := net.LookupHost("reveille.invalid"); return notFound(err) },
	"fast open": func(w world) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.Sendto(fd, []byte("GET /"), unix.MSG_FASTOPEN, loopback(w.TCP))
	},
	"vsock": func(world) error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err },
	"netlink": func(world) error {
		_, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
		return err
	},
	"io_uring": func(world) error { return call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(new([256]byte)))) },
	"x32":      func(world) error { return call(0x40000000+unix.SYS_GETPID, 0, 0) },
	"new user": func(world) error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"new net": func(world) error {
		c := exec.Command("/bin/true")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
		return c.Run()
	},
	"mount":  func(w world) error { return unix.Mount("none", w.Dir, "tmpfs", 0, "") },
	"chroot": func(w world) error { return unix.Chroot(w.Dir) },
	"bpf":    func(world) error { return call(unix.SYS_BPF, 0, 0) },
	"setuid": func(w world) error {
		out, err := exec.Command(w.SetUID, "-u").Output()
		if err == nil && strings.TrimSpace(string(out)) != "0" {
			err = errors.New("still user " + strings.TrimSpace(string(out)))
		}
		return err
	},
	"capability": func(world) error {
		status, err := os.ReadFile("/proc/self/status")
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "Cap") {
				bits, e := strconv.ParseUint(f[1], 16, 64)
				if err = errors.Join(err, e); bits&^(1<<unix.CAP_DAC_READ_SEARCH) != 0 {
					return nil
				}
			}
		}
		return errors.Join(err, errors.New("none"))
	},
	"privileges": func(world) error {
		if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || on != 1 {
			return nil
		}
		return errors.New("no_new_privs")
	},
	"core": func(world) error {
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil || l.Max > coreLimit {
			return nil
		}
		return errors.New("no core dumps")
	},
	"root": func(world) error {
		if os.Getuid() == 0 {
			return nil
		}
		return fmt.Errorf("user %d", os.Getuid())
	},
	"bomb memory": func(world) error {
		b := make([]byte, 512<<20)
		for i := range b {
			b[i] = 1
		}
		runtime.KeepAlive(b)
		return nil
	},
	"bomb forks": func(w world) error {
		for range w.Up {
			c := exec.Command("/bin/sleep", "60")
			if err := c.Start(); err != nil {
				return err
			}
			defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
		}
		return nil
	},
}

// allowed lists the attempts that must succeed. "root" can be allowed only if the engine's files belong to root.
var allowed = []string{"read model", "read device", "read proc", "write own", "listen own", "runner socket", "exec", "thread"}

func loopback(port int) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

func listen(port int) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err == nil {
		_ = l.Close()
	}
	return err
}

func dial(kind, proto, port int) error {
	fd, err := unix.Socket(unix.AF_INET, kind, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, loopback(port)); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("GET / HTTP/1.0\r\n\r\n"))
	return err
}

func call(number, a, b uintptr) error {
	if _, _, e := unix.Syscall(number, a, b, 0); e != 0 {
		return e
	}
	return nil
}

// notFound returns nil if a name server answered.
func notFound(err error) error {
	var e *net.DNSError
	if err == nil || errors.As(err, &e) && e.IsNotFound {
		return nil
	}
	return err
}

func newBox(t *testing.T, cfg Config) *Sandbox {
	t.Helper()
	if cfg.Mode == "" {
		cfg.Mode = Auto
	}
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("measures: %+v", s.Report())
	return s
}

// needs skips a test that requires a measure this machine lacks.
func needs(t *testing.T, s *Sandbox, measures ...string) {
	t.Helper()
	for _, m := range measures {
		if slices.Contains(s.Report().Missing, m) {
			t.Skipf("this machine has no %s", m)
		}
	}
}

// scene creates files, servers and a program that tries to escape from the sandbox. With open every user can read the
// files.
func scene(t *testing.T, open bool) (world, Permissions) {
	t.Helper()
	top, err := os.MkdirTemp("", "rvbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	mode := os.FileMode(0o700)
	if open {
		mode = 0o755
	}
	at := func(parts ...string) string { return filepath.Join(append([]string{top}, parts...)...) }
	for _, dir := range []string{"models", "state", "run", "bin"} {
		err = errors.Join(err, os.Mkdir(at(dir), 0o755))
	}
	err = errors.Join(err, os.Chmod(top, mode), os.Mkdir(at("run", "own"), 0o700), copyFile("/proc/self/exe", at("bin", "engine"), 0o755), copyFile("/usr/bin/id", at("bin", "id"), 0o755))
	err = errors.Join(err, os.Chmod(at("bin", "id"), 0o755|os.ModeSetuid))
	for _, f := range []string{"models/m.gguf", "models/other.gguf", "state/secret"} {
		err = errors.Join(err, os.WriteFile(at(f), []byte("content"), 0o644)) // the mode alone lets everyone read it
	}
	if err != nil {
		t.Fatal(err)
	}
	sock, err := net.Listen("unix", at("run", "mm.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() })
	w := world{
		Model: at("models", "m.gguf"), Other: at("models", "other.gguf"), Secret: at("state", "secret"), Dir: at("run", "own"), Sock: at("run", "mm.sock"),
		Port: freePort(t), Free: freePort(t), TCP: canary(t, "tcp"), UDP: canary(t, "udp"), Runner: os.Getpid(), SetUID: at("bin", "id"),
	}
	return w, Permissions{Program: at("bin", "engine"), Read: []string{w.Model}, Sockets: []string{w.Sock}, Dir: w.Dir, Port: w.Port}
}

func copyFile(from, to string, mode os.FileMode) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, mode)
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// canary starts a server that nobody may reach.
func canary(t *testing.T, network string) int {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			if n, from, err := c.ReadFrom(make([]byte, 100)); err == nil {
				t.Errorf("the UDP canary heard %d bytes from %v", n, from)
			}
		}()
		return c.LocalAddr().(*net.UDPAddr).Port
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			t.Errorf("the TCP canary was called by %v", c.RemoteAddr())
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// try runs the program in the sandbox and returns the result of each attempt, and the exit error.
func try(t *testing.T, s *Sandbox, w world, perms Permissions) (map[string]string, error) {
	t.Helper()
	text, _ := json.Marshal(w)
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(perms.Program)
	cmd.Env = []string{"SANDBOX_TEST_TRY=" + string(text), "HOME=/root", "PATH=/usr/bin:/bin"}
	cmd.Stdout, cmd.Stderr = out, out
	quit := make(chan struct{})
	release, err := s.Start(cmd, perms, quit)
	_ = out.Close()
	if err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	printed, _ := io.ReadAll(r)
	ended := cmd.Wait()
	kill.Stop()
	release()
	got := map[string]string{}
	if err := json.Unmarshal(printed, &got); err != nil && ended == nil {
		t.Errorf("%v: %s", err, printed)
	}
	return got, ended
}

// TestJailRestrictsTheEngine lets a program try everything that an engine needs and everything that must be blocked:
// once with files that its own user can read, once with files that only root can read.
func TestJailRestrictsTheEngine(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(map[bool]string{true: "own user", false: "runner's user"}[open], func(t *testing.T) {
			w, perms := scene(t, open)
			s := newBox(t, Config{Memory: 1 << 30, Private: []string{filepath.Dir(w.Secret)}})
			needs(t, s, Files, Network, Syscalls, Capabilities)
			got, err := try(t, s, w, perms)
			if err != nil {
				t.Fatal(err)
			}
			for name := range attempts {
				if strings.HasPrefix(name, "bomb") || name == "kill PID" && slices.Contains(s.Report().Missing, Signals) {
					continue
				}
				want := slices.Contains(allowed, name)
				if name == "root" || name == "setuid" {
					want = !open && os.Getuid() == 0
				}
				if got[name] == "" || (got[name] == "ok") != want {
					t.Errorf("%s: %q, want ok: %v", name, got[name], want)
				}
			}
			t.Logf("%v", got)
		})
	}
}

// A path in a folder that the runner may not search is skipped like one that does not exist.
func TestFoldersThatCannotBeSearched(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(closed, ".nv", "ComputeCache")
	var before, after int
	var err error
	done := make(chan struct{})
	onThread(func() {
		defer close(done)
		if os.Getuid() == 0 { // root searches every folder
			_, _ = unix.SetfsuidRetUid(65534)
		}
		_, err = os.Stat(cache)
		perms := Permissions{Program: "/bin/true"}
		before = len(new(Sandbox).fileRules(perms))
		perms.Write, perms.Read = []string{cache}, []string{cache}
		after = len(new(Sandbox).fileRules(perms))
	})
	if <-done; !errors.Is(err, fs.ErrPermission) {
		t.Fatal("the test's folder can be searched:", err)
	}
	if before == 0 || after != before {
		t.Errorf("%d rules, %d without the folder", after, before)
	}
}

// TestOpenJailAllowsFilesAndNetwork checks that an engine gets the open files and network that its recipe asks for.
func TestOpenJailAllowsFilesAndNetwork(t *testing.T) {
	w, perms := scene(t, false)
	s := newBox(t, Config{})
	perms.OpenFiles, perms.OpenNet = true, true
	w.Only = []string{"read other", "listen else", "read secret", "kill PID", "io_uring", "privileges"}
	got, err := try(t, s, w, perms)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"read other", "read secret", "listen else"} {
		if got[name] != "ok" {
			t.Errorf("%s: %s", name, got[name])
		}
	}
	if !slices.Contains(s.Report().Missing, Signals) && got["kill PID"] == "ok" {
		t.Error("an engine with open files and network may signal the runner")
	}
	if !slices.Contains(s.Report().Missing, Syscalls) && got["io_uring"] == "ok" {
		t.Error("io_uring is open")
	}
	if got["privileges"] != "no_new_privs" {
		t.Error("no_new_privs is not set")
	}
}

// TestMemoryAndProcessesAreLimited kills an engine that exceeds its memory limit and refuses processes beyond the
// limit.
func TestMemoryAndProcessesAreLimited(t *testing.T) {
	for name, killed := range map[string]bool{"bomb memory": true, "bomb forks": false} {
		w, perms := scene(t, true)
		s := newBox(t, Config{Memory: 128 << 20})
		needs(t, s, Memory, Pids)
		w.Only, w.Up, perms.Pids = []string{name}, 80, 40
		got, err := try(t, s, w, perms)
		var exit *exec.ExitError
		if got[name] == "ok" || killed != (errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL) {
			t.Errorf("%s: %v %v", name, got, err)
		}
		if found := glob(filepath.Join(globEscape(s.cgroup), cgroupPrefix+strconv.Itoa(os.Getpid())+"*")); len(found) > 0 {
			t.Errorf("control groups remain: %v", found)
		}
	}
}

// TestStrictRefusesMissingMeasures refuses to start anything if a measure is missing.
func TestStrictRefusesMissingMeasures(t *testing.T) {
	s := newBox(t, Config{Mode: Strict}) // without a memory limit
	cmd := exec.Command("/bin/true")
	if _, err := s.Start(cmd, Permissions{Program: "/bin/true"}, nil); !errors.Is(err, ErrMissing) || cmd.Process != nil {
		t.Errorf("started: %v", err)
	}
}

// TestOffKeepsNoNewPrivs removes nothing from an engine but the ability to gain privileges.
func TestOffKeepsNoNewPrivs(t *testing.T) {
	w, perms := scene(t, false)
	s := newBox(t, Config{Mode: Off})
	w.Only = []string{"read other", "listen else", "root", "privileges"}
	got, err := try(t, s, w, perms)
	if err != nil || got["read other"] != "ok" || got["listen else"] != "ok" || got["privileges"] != "no_new_privs" || (got["root"] == "ok") != (os.Getuid() == 0) {
		t.Errorf("%v %v", got, err)
	}
}

// TestEngineDiesWithTheRunner checks that an engine of another user dies with its runner.
func TestEngineDiesWithTheRunner(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SANDBOX_TEST_RUNNER=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pid, uid int
	_, err = fmt.Fscan(out, &pid, &uid)
	if err != nil || (os.Getuid() == 0) != (strconv.Itoa(uid) == accountID) {
		t.Errorf("engine %d runs as user %d: %v", pid, uid, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for end := time.Now().Add(20 * time.Second); pid > 0 && syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if strings.Contains(string(stat), ") Z ") {
			break // dead; another process reaps it
		}
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the engine outlived its runner")
		}
	}
}

// TestEngineRunsAsItsUser rejects users that engines cannot run as.
func TestEngineRunsAsItsUser(t *testing.T) {
	for _, name := range []string{"root", "0", "0:5", "nobody-here", "-1", "1:x"} {
		if _, err := New(Config{User: name, Mode: Auto}); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
}

// BenchmarkStart measures the sandbox's overhead when starting a process.
func BenchmarkStart(b *testing.B) {
	for _, mode := range []string{Off, Auto} {
		b.Run(mode, func(b *testing.B) {
			s, err := New(Config{Mode: mode, Memory: 1 << 30, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				release, err := s.Start(cmd, Permissions{Program: "/bin/true", Dir: b.TempDir(), Port: 1}, nil)
				if err != nil {
					b.Fatal(err)
				}
				_ = cmd.Wait()
				release()
			}
		})
	}
}

func TestCgroupDirIsTheRunnersGroup(t *testing.T) {
	for own, want := range map[string]string{
		"8:memory:/not/here\n7:cpu,cpuacct:/\n0::/x\n": cgroupRoot, "0::/": cgroupRoot, "8:memory:/x\n": cgroupRoot, "": cgroupRoot,
		// A second sandbox in one process uses the same folder as the first, which moved the process.
		"0::/" + runnerGroup + "\n": cgroupRoot,
	} {
		if got := cgroupDir(own); got != want {
			t.Errorf("%q: %q, want %q", own, got, want)
		}
	}
}

// TestGroupHasItsLimits checks what is written to control groups.
func TestGroupHasItsLimits(t *testing.T) {
	group, err := newGroup(t.TempDir(), 1<<30, 40)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "1073741824", "memory.oom.group": "1", "pids.max": "40"} {
		if b, err := os.ReadFile(filepath.Join(group, file)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", file, b, err)
		}
	}
}
