//go:build !linux

package mmcache

import (
	"errors"
	"os"
)

func sealedFile([][]byte, int) (*os.File, error) { return nil, errors.ErrUnsupported }

func stateOf(os.FileInfo) (fileState, error) { return fileState{}, errors.ErrUnsupported }

const supported = false
