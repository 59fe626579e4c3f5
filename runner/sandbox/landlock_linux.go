package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Files that libraries and drivers read. Paths missing on a machine are skipped. From /etc only files without secrets
// are listed.
var system = []string{
	"/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/proc", "/sys",
	"/nix/store", "/gnu/store", "/run/opengl-driver", "/opt/rocm*", "/opt/amdgpu*", "/opt/nvidia", "/opt/intel", "/opt/xilinx",
	"/etc/ld.so.*", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf",
	"/etc/localtime", "/etc/timezone", "/etc/locale*", "/etc/os-release", "/etc/alternatives", "/etc/ssl/openssl.cnf",
	"/etc/vulkan", "/etc/OpenCL", "/etc/glvnd", "/etc/egl", "/etc/nvidia*", "/etc/amd*",
}

// Device files that engines open.
var devices = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
	"/dev/dri", "/dev/nvidia*", "/dev/kfd", "/dev/accel", "/dev/dxg",
}

// Access rights; those that the kernel does not know are dropped.
const (
	rightsFile  = unix.LANDLOCK_ACCESS_FS_READ_FILE
	rightsRead  = rightsFile | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_EXECUTE
	rightsDev   = rightsFile | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	rightsSock  = unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	rightsWrite = rightsFile | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	// The kernel accepts only these rights in a rule for anything other than a folder.
	rightsOfFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | rightsFile | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
)

// Versions of the interface that first restrict more than files.
const (
	abiNet     = 4 // Linux 6.7
	abiSignals = 6 // Linux 6.12
)

// landlockABI returns the kernel's version of the interface, or 0 if it has none.
func landlockABI() int {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(v)
}

// fileRights returns the file rights that a version of the interface can restrict.
func fileRights(abi int) uint64 {
	switch {
	case abi >= 9:
		return 1<<17 - 1
	case abi >= 5:
		return 1<<16 - 1
	case abi >= 3:
		return 1<<15 - 1
	case abi == 2:
		return 1<<14 - 1
	}
	return 1<<13 - 1
}

// ruleset is a Landlock ruleset under construction.
type ruleset struct {
	fd   int
	attr unix.LandlockRulesetAttr
}

// newRuleset builds the complete ruleset of a jail.
func (s *Sandbox) newRuleset(j Jail) (*ruleset, error) {
	var r ruleset
	if !j.OpenFiles {
		r.attr.Handled_access_fs = fileRights(s.abi)
	}
	if s.abi >= abiNet && !j.OpenNet {
		r.attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if s.abi >= abiSignals {
		r.attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	if s.abi == 0 || r.attr == (unix.LandlockRulesetAttr{}) {
		return nil, nil
	}
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&r.attr)), unsafe.Sizeof(r.attr), 0)
	if e != 0 {
		return nil, fmt.Errorf("landlock_create_ruleset: %w", e)
	}
	r.fd = int(fd)
	err := r.port(j.Port)
	if err == nil && !j.OpenFiles {
		err = s.fileRules(&r, j)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return &r, nil
}

func (r *ruleset) close() { _ = unix.Close(r.fd) }

// port allows listening on one port.
func (r *ruleset) port(port int) error {
	if port == 0 || r.attr.Handled_access_net == 0 {
		return nil
	}
	attr := struct{ access, port uint64 }{unix.LANDLOCK_ACCESS_NET_BIND_TCP, uint64(port)}
	const ruleNetPort = 2 // LANDLOCK_RULE_NET_PORT
	if _, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), ruleNetPort, uintptr(unsafe.Pointer(&attr)), 0, 0, 0); e != 0 {
		return fmt.Errorf("landlock_add_rule port %d: %w", port, e)
	}
	return nil
}

// path allows access to a file, or to everything below a folder. A missing path is skipped.
func (r *ruleset) path(path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sandbox: %s: %w", filepath.Base(path), err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("sandbox: %s: %w", filepath.Base(path), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= rightsOfFiles
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access & r.attr.Handled_access_fs, Parent_fd: int32(fd)}
	if attr.Allowed_access == 0 {
		return nil
	}
	if _, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0); e != 0 {
		return fmt.Errorf("landlock_add_rule %s: %w", filepath.Base(path), e)
	}
	return nil
}

// fileRules adds the files that a jail may access.
func (s *Sandbox) fileRules(r *ruleset, j Jail) error {
	var errs []error
	add := func(access uint64, patterns ...string) {
		for _, p := range patterns {
			found := []string{p}
			if strings.Contains(p, "*") {
				found, _ = filepath.Glob(p)
			}
			for _, f := range found {
				errs = append(errs, r.path(f, access))
			}
		}
	}
	add(rightsRead, system...)
	add(rightsDev, devices...)
	for _, path := range j.Read {
		errs = append(errs, r.path(path, rightsRead&^unix.LANDLOCK_ACCESS_FS_EXECUTE))
	}
	for _, path := range append([]string{j.Dir}, j.Write...) {
		if path != "" {
			errs = append(errs, r.path(path, rightsWrite))
		}
	}
	for _, path := range j.Sockets {
		errs = append(errs, r.path(path, rightsSock))
	}
	for _, dir := range j.programFolders() {
		if !s.exposes(dir) {
			errs = append(errs, r.path(dir, rightsRead))
			continue
		}
		libs, _ := filepath.Glob(filepath.Join(globEscape(dir), "*.so*"))
		for _, lib := range libs {
			errs = append(errs, r.path(lib, rightsRead))
		}
	}
	if j.Program != "" {
		errs = append(errs, r.path(j.Program, rightsRead))
	}
	return errors.Join(errs...)
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace

// programFolders returns the folders of the program and its libraries, including those that links point to.
func (j Jail) programFolders() []string {
	dirs := append([]string(nil), j.Libraries...)
	if j.Program != "" {
		dirs = append(dirs, filepath.Dir(j.Program))
		if target, err := filepath.EvalSymlinks(j.Program); err == nil {
			dirs = append(dirs, filepath.Dir(target), filepath.Join(filepath.Dir(target), "..", "lib"))
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

// enforce restricts this thread and everything it starts. It requires no_new_privs.
func (r *ruleset) enforce() error {
	if r == nil {
		return nil
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); e != 0 {
		return os.NewSyscallError("landlock_restrict_self", e)
	}
	return nil
}
