package mmcache

import (
	"errors"
	"os"
	"syscall"
)

func stateOf(info os.FileInfo) (fileState, error) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileState{}, errors.ErrUnsupported
	}
	return fileState{uint64(s.Dev), s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano()}, nil
}
