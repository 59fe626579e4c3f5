package mmcache

import (
	"os"

	"golang.org/x/sys/unix"
)

// sealedFile returns a memory file of the parts, each padded to a multiple of align. It is sealed against changes, so
// mapping it cannot lead to faults. The caller closes it.
func sealedFile(parts [][]byte, align int) (*os.File, error) {
	fd, err := unix.MemfdCreate("reveille-mm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "reveille-mm")
	var at int64
	for _, p := range parts {
		if _, err = f.WriteAt(p, at); err != nil {
			break
		}
		at += int64((len(p) + align - 1) / align * align)
	}
	if err == nil {
		err = f.Truncate(at)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// supported reports whether engines on this system can share memory with the runner as the cache requires.
const supported = true
