package engine

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
)

// maxSocketPath is the maximum length of a socket path on every system, without the final NUL.
const maxSocketPath = 103

// assignAddress gives spec an address if it has none. The port is reserved until release is called, which can happen
// more than once.
func assignAddress(spec *Spec, dir string) (release func(), err error) {
	release = func() {}
	if spec.onSocket() {
		if spec.Socket == "" {
			spec.Socket = filepath.Join(dir, "engine.sock")
		}
		if len(spec.Socket) > maxSocketPath {
			return release, fmt.Errorf("socket path of %d bytes is longer than %d", len(spec.Socket), maxSocketPath)
		}
		return release, nil
	}
	if spec.Host == "" {
		spec.Host = "127.0.0.1"
	}
	if spec.Port != 0 {
		return release, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(spec.Host, "0"))
	if err != nil {
		return release, fmt.Errorf("find a port for the engine: %w", err)
	}
	spec.Port = l.Addr().(*net.TCPAddr).Port
	return sync.OnceFunc(func() { _ = l.Close() }), nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// withLibraryPath puts the program's folder first in LD_LIBRARY_PATH if its libraries are in that folder.
func withLibraryPath(env []string, program string) []string {
	const name = "LD_LIBRARY_PATH="
	for i, kv := range env {
		if current, ok := strings.CutPrefix(kv, name); ok {
			env[i] = name + libraryPath(program, current)
			return env
		}
	}
	if path := libraryPath(program, ""); path != "" {
		env = append(env, name+path)
	}
	return env
}
