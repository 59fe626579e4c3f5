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

// maxSocketPath is what fits into a socket address on every system, with its end.
const maxSocketPath = 103

// fillAddress gives spec an address of its own where it has none. The port is held until release is called, which may
// happen more than once.
func fillAddress(spec *Spec, dir string) (release func(), err error) {
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

// withLibraries puts the program's folder first in LD_LIBRARY_PATH when its libraries lie beside it.
func withLibraries(env []string, program string) []string {
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
