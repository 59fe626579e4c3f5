package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

const (
	// umask lets only the engine's own user read the files it creates.
	umask = 0o077
	// Engines run as account accountName if the machine has it, otherwise with user and group accountID.
	accountName = "reveille-engine"
	accountID   = "60978"
	// coreLimit turns core dumps off. Unlike 0 it also stops dumps that the kernel pipes to a program (core(5)).
	coreLimit = 1
	// stackLimit is the stack size of engine threads in bytes. llama.cpp's tokenizers recurse for each character of a
	// long word, and its parsers for each bracket and space of a response. glibc's usual 8 MiB overflow at some 20,000
	// levels. Memory is used only for the pages that a thread touches.
	stackLimit = 256 << 20
)

// A Sandbox starts confined engines. It is safe for concurrent use.
type Sandbox struct {
	cfg      Config
	report   Report
	landlock bool
	seccomp  bool
	cgroup   string // where the engines' groups are created, "" for none
	uid      uint32 // of engines; 0 means the runner's own
	gid      uint32
	private  []string
}

// New probes what this machine supports by trying it on a short-lived thread. It also turns core dumps off for this
// process, whose memory holds keys, and raises its stack limit, which engines inherit. It fails if the user does not
// exist or the runner cannot switch to it.
func New(cfg Config) (*Sandbox, error) {
	cfg.Mode = cmp.Or(cfg.Mode, Auto)
	s := &Sandbox{cfg: cfg}
	if err := s.findUser(); err != nil {
		return nil, err
	}
	growStacks()
	if cfg.Mode == Off {
		s.report = newReport(Off, measures[1:]) // all but NoNewPrivs
		return s, nil
	}
	home, _ := os.UserHomeDir()
	for _, p := range append(slices.Clone(cfg.Private), home) {
		if p != "" && realPath(p) != "/" {
			s.private = append(s.private, realPath(p))
		}
	}
	missing := s.probe()
	if s.cgroup = findCgroup(); s.cgroup == "" {
		missing = append(missing, Memory, Pids)
		cfg.Log.Info("engines have no limit of memory and processes: the runner needs a delegated control group of version 2 (systemd: Delegate=yes)")
	} else if cfg.Memory <= 0 {
		missing = append(missing, Memory)
	}
	var core unix.Rlimit
	if unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: coreLimit, Max: coreLimit}) != nil &&
		(unix.Getrlimit(unix.RLIMIT_CORE, &core) != nil || core.Max > coreLimit) {
		missing = append(missing, CoreDumps)
	}
	s.report = newReport(cfg.Mode, missing)
	if os.Getuid() != 0 { // nothing to drop
		s.report.On = slices.DeleteFunc(s.report.On, func(m string) bool { return m == User })
	}
	return s, nil
}

// growStacks raises this process's soft stack limit to stackLimit, as far as the hard limit allows. glibc takes it as
// the size of thread stacks when a program starts. It also lowers an unlimited soft limit, which glibc would treat as
// 2 MiB.
func growStacks() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_STACK, &l) != nil || l.Cur >= stackLimit && l.Cur != unix.RLIM_INFINITY {
		return
	}
	l.Cur = min(stackLimit, l.Max)
	_ = unix.Setrlimit(unix.RLIMIT_STACK, &l) // allowed, as it is within the hard limit
}

// Report returns the result of New's probe.
func (s *Sandbox) Report() Report { return s.report }

// findUser looks up the user of the engines.
func (s *Sandbox) findUser() error {
	if os.Getuid() != 0 {
		if s.cfg.User != "" {
			return errors.New("an engine user can only be set if the runner is root")
		}
		return nil
	}
	if s.cfg.User == "" && s.cfg.Mode == Off {
		return nil
	}
	uid, gid, ok := strings.Cut(s.cfg.User, ":")
	if !ok {
		gid = uid
	}
	if u, err := user.Lookup(cmp.Or(s.cfg.User, accountName)); err == nil {
		uid, gid = u.Uid, u.Gid
	} else if s.cfg.User == "" {
		uid, gid = accountID, accountID
	}
	u, err1 := strconv.ParseUint(uid, 10, 31)
	g, err2 := strconv.ParseUint(gid, 10, 31)
	if errors.Join(err1, err2) != nil || u == 0 || g == 0 {
		return fmt.Errorf("engine user %q: want an account of this machine other than root, a UID, or UID:GID", s.cfg.User)
	}
	s.uid, s.gid = uint32(u), uint32(g)
	return nil
}

// probe confines a thread with no permissions and returns the measures that do not work there.
func (s *Sandbox) probe() (missing []string) {
	check := func(measure string, works bool) {
		if !works {
			missing = append(missing, measure)
		}
	}
	done := make(chan struct{})
	onThread(func() {
		defer close(done)
		check(NoNewPrivs, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == nil)
		check(Capabilities, dropCapabilities(false) == nil)
		s.landlock = s.restrict(Permissions{Port: 1}) == nil
		s.seccomp = seccomp(true, false) == nil
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		check(Files, err != nil)
		abi, err := ll.LandlockGetABIVersion()
		check(Network, isRefused(unix.SOCK_DGRAM, false) && isRefused(unix.SOCK_STREAM, true))
		check(Signals, err == nil && s.landlock && abi >= abiSignals)
		check(Syscalls, s.seccomp && unix.Unshare(unix.CLONE_NEWUTS) == unix.EPERM)
	})
	<-done
	return missing
}

// isRefused reports whether this thread cannot create a socket, or cannot connect with it.
func isRefused(kind int, connect bool) bool {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	if !connect {
		return false
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 1}})
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// onThread runs f on a new thread that ends with f, so the thread's settings end with it too. The thread is never the
// main thread, which cannot end.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			moved := make(chan struct{})
			onThread(func() { close(moved); f() })
			<-moved // keep the main thread occupied until f has another thread
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
}

// Start starts cmd with perms, in a separate process group, and returns once the program runs. The engine is killed
// when this process exits or quit is closed. The caller must call release after the process has exited; release is
// never nil.
func (s *Sandbox) Start(cmd *exec.Cmd, perms Permissions, quit <-chan struct{}) (release func(), err error) {
	if err := s.report.Check(); err != nil {
		return func() {}, err
	}
	group := ""
	if s.cgroup != "" {
		group, err = newGroup(s.cgroup, s.cfg.Memory, cmp.Or(max(perms.Pids, 0), defaultPids))
		if err := s.allowUnlimited(err); err != nil {
			removeGroup(group)
			return func() {}, err
		}
	}
	started, released := make(chan error, 1), make(chan struct{})
	onThread(func() {
		err := s.confine(cmd, perms)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			select { // the kernel kills the engine when the thread that forked it ends
			case <-released:
			case <-quit:
			}
		}
	})
	if err := <-started; err != nil {
		removeGroup(group)
		return func() {}, err
	}
	release = func() { close(released); removeGroup(group) }
	if group == "" {
		return release, nil
	}
	if err := s.allowUnlimited(writeFile(group, "cgroup.procs", strconv.Itoa(cmd.Process.Pid))); err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		release()
		return func() {}, err
	}
	return release, nil
}

// allowUnlimited logs a control group error as a warning and drops it, except in strict mode.
func (s *Sandbox) allowUnlimited(err error) error {
	switch {
	case err == nil:
		return nil
	case s.cfg.Mode == Strict:
		return fmt.Errorf("engine's control group: %w", err)
	}
	s.cfg.Log.Warn("engine runs without limits", "error", err)
	return nil
}

// confine restricts this thread to perms and sets the user of cmd.
func (s *Sandbox) confine(cmd *exec.Cmd, perms Permissions) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// A sandbox around the runner can refuse both; New has reported that.
	if unix.Unshare(unix.CLONE_FS) == nil {
		unix.Umask(umask)
	}
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if s.cfg.Mode == Off {
		if s.uid == 0 {
			return nil
		}
		return s.setUser(cmd, perms)
	}
	readFiles := false
	if s.uid != 0 && (s.cfg.User != "" || !perms.OpenFiles) {
		err := s.setUser(cmd, perms)
		if err != nil && (s.cfg.User != "" || s.cfg.Mode == Strict) {
			return err
		}
		if err != nil {
			s.cfg.Log.Warn("engine runs as root, because the engine user cannot read its files", "program", filepath.Base(perms.Program), "error", err)
		}
		readFiles = err != nil
	}
	if s.uid != 0 && cmd.SysProcAttr.Credential == nil && perms.OpenFiles {
		s.cfg.Log.Warn("engine runs as root and can read every file, because its recipe needs open files; set --engine-user", "program", filepath.Base(perms.Program))
	}
	_ = dropCapabilities(readFiles) // New has reported that
	if s.landlock {
		if err := s.restrict(perms); err != nil {
			return err
		}
	}
	if s.seccomp {
		return seccomp(perms.Port != 0, perms.OpenNet)
	}
	return nil
}

// setUser makes cmd run as the engine user, if that user can read the files in perms.
func (s *Sandbox) setUser(cmd *exec.Cmd, perms Permissions) error {
	owned := slices.Clone(perms.Sockets)
	if perms.Dir != "" {
		owned = append(owned, perms.Dir)
	}
	for _, path := range owned {
		if parent := filepath.Dir(path); parent != os.TempDir() {
			if err := os.Chmod(parent, 0o711); err != nil { // its file names are random
				return err
			}
		}
	}
	if err := checkReadable(s.uid, s.gid, slices.Concat(perms.programs(), perms.Read, perms.Exec), owned); err != nil {
		return fmt.Errorf("engine user %d: %w", s.uid, err)
	}
	for _, path := range owned {
		if err := os.Chown(path, int(s.uid), int(s.gid)); err != nil {
			return err
		}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: s.uid, Gid: s.gid, Groups: deviceGroups()}
	if !perms.OpenFiles && perms.Dir != "" {
		cmd.Env = append(slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }), "HOME="+perms.Dir)
	}
	return nil
}

// checkReadable checks that another user can open some files and find others. It must run on a thread that ends.
func checkReadable(uid, gid uint32, open, find []string) error {
	none := [1]uint32{}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, uintptr(unsafe.Pointer(&none)), 0); e != 0 {
		return e
	}
	_, _ = unix.SetfsgidRetGid(int(gid))
	_, _ = unix.SetfsuidRetUid(int(uid))
	defer func() {
		_, _ = unix.SetfsuidRetUid(0)
		_, _ = unix.SetfsgidRetGid(0)
	}()
	for i, path := range slices.Concat(open, find) {
		if path == "" {
			continue
		}
		how := unix.O_RDONLY | unix.O_NONBLOCK
		if i >= len(open) {
			how = unix.O_PATH
		}
		fd, err := unix.Open(path, how|unix.O_CLOEXEC, 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot read %s: %w", filepath.Base(path), err)
		}
		if err == nil {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// deviceGroups returns the groups that own the machine's GPUs and NPUs.
func deviceGroups() []uint32 {
	var out []uint32
	for _, pattern := range []string{"/dev/dri/*", "/dev/nvidia*", "/dev/kfd", "/dev/accel/*"} {
		for _, path := range glob(pattern) {
			var st unix.Stat_t
			if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Gid != 0 && st.Mode&0o060 == 0o060 && !slices.Contains(out, st.Gid) {
				out = append(out, st.Gid)
			}
		}
	}
	return out
}

// dropCapabilities leaves programs that this thread starts without capabilities, whatever user runs them. With
// readFiles an engine that must run as root keeps root's right to read files, within Landlock's limits.
func dropCapabilities(readFiles bool) error {
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if unix.Geteuid() != 0 {
		return nil // an unprivileged process cannot gain anything from the bounding set
	}
	for c := 0; c <= 63; c++ {
		if readFiles && c == unix.CAP_DAC_READ_SEARCH {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // past the kernel's last capability
		} else if err != nil {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	return unix.Capset(&head, &data[0])
}
