package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// maxSocketPath is what fits into the address of a socket on every system, with its end.
const maxSocketPath = 103

// embeddedRedis is the Redis of gateway run. It listens on a socket that only this user can reach, so that it needs no
// password.
type embeddedRedis struct {
	db       *miniredis.Miniredis
	listener *net.UnixListener
	accepted chan struct{} // closed once no connection is accepted any more
}

// startRedis serves on a unix socket until Close. What is at its path is removed: it must be a socket of an earlier
// process.
func startRedis(path string) (*embeddedRedis, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of its socket, %s, has %d bytes and may have %d: choose a shorter --state-dir",
			path, len(path), maxSocketPath)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	e := &embeddedRedis{db: miniredis.NewMiniRedis(), listener: listener, accepted: make(chan struct{})}
	e.db.ClockTTL(true)
	first, err := e.db.Dial() // starts it without a listener of its own, which would be a TCP port
	if err := errors.Join(err, os.Chmod(path, 0o600)); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	_ = first.Close()
	go e.accept()
	return e, nil
}

func (e *embeddedRedis) accept() {
	defer close(e.accepted)
	for {
		c, err := e.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(10 * time.Millisecond) // out of descriptors
		case confined(c):
			_ = c.Close()
		default:
			e.db.Server().ServeConn(c)
		}
	}
}

// Close ends every connection and removes the socket.
func (e *embeddedRedis) Close() {
	_ = e.listener.Close()
	<-e.accepted
	e.db.Close()
}
