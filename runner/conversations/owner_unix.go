//go:build unix

package conversations

import (
	"os"
	"syscall"
)

// openUntrusted opens for reading a file that another user can replace. It does not follow a link or wait for the other
// end of a pipe.
func openUntrusted(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// giveTo makes the owner of a folder the owner of a file.
func giveTo(f *os.File, root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Getuid() {
		return f.Chown(int(st.Uid), int(st.Gid))
	}
	return nil
}
