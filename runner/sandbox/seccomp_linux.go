//go:build linux && (amd64 || arm64)

package sandbox

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied lists system calls that engines never make, but that attacks on the kernel, on other processes or on this
// filter use. It includes io_uring, whose operations bypass every filter.
var denied = []uint32{
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_ADD_KEY, unix.SYS_KEYCTL, unix.SYS_REQUEST_KEY,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_REBOOT, unix.SYS_SWAPON,
	unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_QUOTACTL,
}

const (
	newNamespace = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
	refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// Offsets in struct seccomp_data. Arguments are 64 bits wide; both architectures are little-endian, so the low half
// comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// filter builds the seccomp program for engines. It allows no internet sockets, TCP alone (inet; Landlock restricts it
// further) or all (open). All calls through the 32-bit and x32 interfaces are refused, as their numbers differ.
func filter(inet, open bool) []unix.SockFilter {
	arch := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		arch = unix.AUDIT_ARCH_AARCH64
	}
	stmt := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	load := func(off uint32) unix.SockFilter { return stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, off) }
	arg := func(i uint32) unix.SockFilter { return load(offArgs + 8*i) }
	and := func(k uint32) unix.SockFilter { return stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, k) }
	ret := func(k uint32) unix.SockFilter { return stmt(unix.BPF_RET|unix.BPF_K, k) }
	// jump skips yes instructions if A equals k, otherwise no instructions.
	jump := func(k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
	}
	over := func(k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
	}
	allow := ret(unix.SECCOMP_RET_ALLOW)
	p := []unix.SockFilter{load(offArch), jump(arch, 1, 0), ret(refuse), load(offNumber), over(0x40000000, 0, 1), ret(refuse)}
	// when runs body for one system call. body must end in a return.
	when := func(number uint32, body ...unix.SockFilter) {
		p = append(p, jump(number, 0, len(body)))
		p = append(p, body...)
	}
	for _, n := range denied {
		when(n, ret(refuse))
	}
	when(unix.SYS_CLONE3, ret(absent)) // a filter cannot read its flags, which are in memory; C libraries fall back to clone
	when(unix.SYS_CLONE, arg(0), and(newNamespace), jump(0, 0, 1), allow, ret(refuse))
	if !open {
		internet := []unix.SockFilter{ret(refuse)}
		if inet {
			internet = []unix.SockFilter{
				arg(1), and(0xf), jump(unix.SOCK_STREAM, 1, 0), ret(refuse),
				arg(2), jump(0, 1, 0), jump(unix.IPPROTO_TCP, 0, 1), allow, ret(refuse), // MPTCP and SCTP would bypass Landlock
			}
		}
		body := []unix.SockFilter{
			arg(0), jump(unix.AF_UNIX, 0, 1), allow,
			jump(unix.AF_NETLINK, 0, 4), // for interface addresses and libudev's device events
			arg(2), jump(unix.NETLINK_ROUTE, 1, 0), jump(unix.NETLINK_KOBJECT_UEVENT, 0, 1), allow,
			arg(0), jump(unix.AF_INET, 2, 0), jump(unix.AF_INET6, 1, 0), ret(refuse),
		}
		when(unix.SYS_SOCKET, append(body, internet...)...)
		// TCP Fast Open connects without the connect call.
		for call, flags := range map[uint32]uint32{unix.SYS_SENDTO: 3, unix.SYS_SENDMSG: 2, unix.SYS_SENDMMSG: 3} {
			when(call, arg(flags), and(unix.MSG_FASTOPEN), jump(0, 0, 1), allow, ret(refuse))
		}
	}
	return append(p, allow)
}

// seccomp installs the filter for this thread and everything it starts. It requires no_new_privs.
func seccomp(inet, open bool) error {
	f := filter(inet, open)
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(f)
	if e != 0 {
		return e
	}
	return nil
}
