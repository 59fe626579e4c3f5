//go:build !linux

package filestate

import (
	"errors"
	"os"
)

// Of returns errors.ErrUnsupported.
func Of(os.FileInfo) (State, error) { return State{}, errors.ErrUnsupported }
