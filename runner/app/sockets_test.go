package app

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/testenv"
)

// What a killed runner left is gone with the next start; nothing else is.
func TestSocketDir(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	record := filepath.Join(t.TempDir(), "sockets-h")
	first, err := socketDir(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first, "mm.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := socketDir(record)
	if err != nil || second == first {
		t.Fatal(second, err)
	}
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("the first folder: %v", err)
	}
	if info, err := os.Stat(second); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the second folder: %v %v", info, err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(record, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := socketDir(record); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a folder of somebody else: %v", err)
	}
	if _, err := socketDir(filepath.Join(record, "no")); err == nil {
		t.Error("a record that cannot be written was passed over")
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), socketPrefix+"*")); len(left) != 2 {
		t.Errorf("folders: %v, want two", left)
	}
}

// A gateway with the same state folder reaches the runner without its address, after a killed runner too, and the socket ends
// with the runner.
func TestSocketForGateways(t *testing.T) {
	s := settings(t, testenv.MiniRedis(t).Addr())
	path := rpc.SocketPath(s.StateDir, "h")
	for range 2 {
		_, end := running(t, s)
		client := relay.New(relay.Config{Network: "unix", Addr: path})
		status, _, err := client.Fetch(t.Context(), &relay.Request{Method: "GET", Path: []byte(rpc.PathHealth)}, "", nil, 1<<10)
		if err != nil || status != 200 {
			t.Errorf("%d, %v", status, err)
		}
		if status, _, err = client.Fetch(t.Context(), &relay.Request{Method: "GET", Path: []byte(rpc.PathMetrics)}, "", nil, 1<<10); err != nil || status != rpc.StatusRefused {
			t.Errorf("metrics without a signature: %d, %v", status, err)
		}
		client.Close()
		if err := end(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("the socket outlives its runner")
		}
		killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		killed.SetUnlinkOnClose(false)
		killed.Close()
	}
	s.StateDir = filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if path := rpc.SocketPath(s.StateDir, "h"); path != "" {
		t.Errorf("%s is no address of a socket", path)
	}
	if _, end := running(t, s); end() != nil {
		t.Error("no runner in a folder with a long path")
	}
}
