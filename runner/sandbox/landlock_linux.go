package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// systemFiles are read by libraries and drivers. Paths that a machine lacks are skipped. From /etc only files without
// secrets are listed.
var systemFiles = []string{
	"/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/proc", "/sys",
	"/nix/store", "/gnu/store", "/run/opengl-driver", "/opt/rocm*", "/opt/amdgpu*", "/opt/nvidia", "/opt/intel", "/opt/xilinx",
	"/etc/ld.so.*", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf",
	"/etc/localtime", "/etc/timezone", "/etc/locale*", "/etc/os-release", "/etc/alternatives", "/etc/ssl/openssl.cnf",
	"/etc/vulkan", "/etc/OpenCL", "/etc/glvnd", "/etc/egl", "/etc/nvidia*", "/etc/amd*",
}

// deviceFiles are opened by engines.
var deviceFiles = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
	"/dev/dri", "/dev/nvidia*", "/dev/kfd", "/dev/accel", "/dev/dxg",
}

// Access rights. Best effort drops those that the kernel does not know.
const (
	rightsRead  = rightsModel | ll.AccessFSExecute
	rightsModel = ll.AccessFSReadFile | ll.AccessFSReadDir
	rightsDev   = rightsModel | ll.AccessFSWriteFile | ll.AccessFSIoctlDev | ll.AccessFSTruncate
	rightsWrite = rightsModel | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveFile | ll.AccessFSRemoveDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSMakeSym | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSResolveUnix
	// The kernel accepts only these rights in a rule for anything other than a folder.
	rightsOfFiles = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev |
		ll.AccessFSResolveUnix
)

// abiSignals is the first Landlock version that restricts signals (Linux 6.12).
const abiSignals = 6

// restrict applies Landlock rules to this thread and everything it starts. It requires no_new_privs. The
// library's own Restrict would apply them to all threads of the runner.
func (s *Sandbox) restrict(perms Permissions) error {
	cfg := landlock.V9 // later versions also restrict UDP, which seccomp refuses
	var rules []landlock.Rule
	if perms.OpenNet {
		cfg.HandledAccessNet = 0
	} else if perms.Port != 0 {
		rules = append(rules, landlock.BindTCP(uint16(perms.Port)))
	}
	if perms.OpenFiles {
		cfg.HandledAccessFS = 0
	} else {
		rules = append(rules, s.fileRules(perms)...)
	}
	fd, flags, err := cfg.BestEffort().NewRulesetFD(rules...)
	if err != nil || fd < 0 {
		return err
	}
	err = ll.LandlockRestrictSelf(fd, flags)
	return errors.Join(err, os.NewFile(uintptr(fd), "landlock").Close())
}

// fileRules returns the rules for the files in perms. Files that the runner cannot reach are skipped: the engine cannot
// reach them either.
func (s *Sandbox) fileRules(perms Permissions) (rules []landlock.Rule) {
	add := func(access landlock.AccessFSSet, paths ...string) {
		for _, path := range paths {
			switch info, err := os.Stat(path); {
			case err != nil:
			case info.IsDir():
				rules = append(rules, landlock.PathAccess(access, path))
			default:
				rules = append(rules, landlock.PathAccess(access&rightsOfFiles, path))
			}
		}
	}
	for _, pattern := range systemFiles {
		add(rightsRead, glob(pattern)...)
	}
	for _, pattern := range deviceFiles {
		add(rightsDev, glob(pattern)...)
	}
	add(rightsModel, perms.Read...)
	add(rightsWrite, append(perms.Write, perms.Dir)...)
	add(ll.AccessFSResolveUnix, perms.Sockets...)
	add(rightsRead, perms.Exec...)
	for _, program := range perms.programs() {
		add(rightsRead, program)
	}
	for _, dir := range perms.programFolders() {
		if s.exposes(dir) {
			add(rightsRead, glob(filepath.Join(globEscape(dir), "*.so*"))...)
		} else {
			add(rightsRead, dir)
		}
	}
	return rules
}

func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern) // fails only for bad patterns
	return found
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace

// programs returns the program and, if that is a script, its interpreter, with those that links point to.
func (perms Permissions) programs() (paths []string) {
	for _, p := range []string{perms.Program, interpreter(perms.Program)} {
		if p == "" {
			continue
		}
		paths = append(paths, p)
		if target, err := filepath.EvalSymlinks(p); err == nil && target != p {
			paths = append(paths, target)
		}
	}
	return paths
}

// programFolders returns the folders of the programs and their libraries, and that of a Python environment.
func (perms Permissions) programFolders() []string {
	dirs := append([]string(nil), perms.Libraries...)
	for _, p := range perms.programs() {
		dirs = append(dirs, filepath.Dir(p))
		if target, err := filepath.EvalSymlinks(p); err == nil && target == p {
			dirs = append(dirs, filepath.Join(filepath.Dir(p), "..", "lib"))
		}
		if env := environment(p); env != "" {
			dirs = append(dirs, env)
		}
	}
	return dirs
}

// exposes reports whether a folder is, or contains, one that engines must not see.
func (s *Sandbox) exposes(dir string) bool {
	dir = realPath(dir)
	for _, private := range s.private {
		rel, err := filepath.Rel(dir, private)
		if err != nil || rel == "." || rel != ".." && !strings.HasPrefix(rel, "../") {
			return true
		}
	}
	return dir == "/"
}

// realPath makes path absolute and resolves its links, as far as the path exists.
func realPath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if p, err := filepath.EvalSymlinks(path); err == nil {
		path = p
	}
	return path
}
