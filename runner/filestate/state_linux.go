package filestate

import (
	"errors"
	"os"
	"syscall"
)

// Of returns the state that info shows, or errors.ErrUnsupported if the system does not report it.
func Of(info os.FileInfo) (State, error) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return State{}, errors.ErrUnsupported
	}
	return State{uint64(s.Dev), s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano()}, nil
}
