package testenv

import (
	"net"
	"testing"
)

// FreePort returns a TCP port of 127.0.0.1 that was free a moment ago. Another process
// may take it before the caller does, so a program that can listen on port 0 and tell
// its address should do that instead.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal("testenv: free port:", err)
	}
	return port
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
