package engine

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// maxSocketPath is the maximum length of a socket path on every system, without the final NUL.
const maxSocketPath = 103

// Engines get ports below those that systems give to programs that ask for any (32768 and higher on Linux), because a
// Python engine binds its port long after it was started.
const (
	firstPort = 20000
	portCount = 10000
)

// ports has the ports of the running engines of this process, so that none is given to a second one.
var ports = struct {
	sync.Mutex
	used map[int]bool
}{used: map[int]bool{}}

// listenOnPort returns a listener on a port that no other engine has. The port belongs to the caller until releasePort.
func listenOnPort(host string) (l net.Listener, err error) {
	ports.Lock()
	defer ports.Unlock()
	for range 100 {
		port := firstPort + mathrand.IntN(portCount)
		if ports.used[port] {
			continue
		}
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			ports.used[port] = true
			return l, nil
		}
	}
	return nil, fmt.Errorf("find a port for the engine: %w", err)
}

// releasePort makes a port of listenOnPort available again, once its engine has exited.
func releasePort(port int) {
	ports.Lock()
	defer ports.Unlock()
	delete(ports.used, port)
}

// assignAddress gives spec an address if it has none. A listener holds the port until closeListener is called, which can
// happen more than once; the port stays reserved in this process until releasePort.
func assignAddress(spec *Spec, dir string) (closeListener func(), err error) {
	closeListener = func() {}
	if spec.onSocket() {
		if spec.Socket == "" {
			spec.Socket = filepath.Join(dir, "engine.sock")
		}
		if len(spec.Socket) > maxSocketPath {
			return closeListener, fmt.Errorf("socket path of %d bytes is longer than %d", len(spec.Socket), maxSocketPath)
		}
		return closeListener, nil
	}
	if spec.Host == "" {
		spec.Host = "127.0.0.1"
	}
	if spec.Port != 0 {
		return closeListener, nil
	}
	l, err := listenOnPort(spec.Host)
	if err != nil {
		return closeListener, err
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
