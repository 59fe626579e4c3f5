package app

import (
	"fmt"
	"os"

	"reveille/infra/filelock"
)

// Lock locks the file at path in the state folder, or returns [ErrRunning]. The lock ends with the process at the
// latest.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	switch locked, err := filelock.Try(f); {
	case err != nil:
		_ = f.Close()
		return nil, fmt.Errorf("state folder: lock %s: %w", path, err)
	case !locked:
		_ = f.Close()
		return nil, ErrRunning
	}
	return func() { _ = f.Close() }, nil
}
