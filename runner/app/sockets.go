package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

const socketPrefix = "reveille-" // of the folder's name

// socketDir creates the folder for the sockets between this runner and its engines, with a path short enough for a
// socket. The file record keeps its path, so that the next runner with the same record removes the folder of a killed
// one. Two runners must not use one record at the same time.
func socketDir(record string) (string, error) {
	old, err := os.ReadFile(record)
	if err == nil && strings.HasPrefix(filepath.Base(string(old)), socketPrefix) {
		_ = os.RemoveAll(string(old)) // remaining files do no harm
	}
	dir, err := os.MkdirTemp("", socketPrefix)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(record, []byte(dir), 0o600); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}
