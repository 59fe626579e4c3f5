package testenv

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// echo is a server that sends back what it gets, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		all.Wait()
	})
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// say sends one byte and waits up to limit for its echo.
func say(c net.Conn, limit time.Duration) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	return hear(c, limit)
}

func hear(c net.Conn, limit time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

const long, short = 20 * time.Second, 100 * time.Millisecond

func TestFlakyPauseAndDelay(t *testing.T) {
	f := NewFlaky(t, echo(t))
	c := dial(t, f.Addr)
	f.Pause()
	f.Pause() // harmless
	if err := say(c, short); err == nil {
		t.Error("heard while paused")
	}
	f.Resume()
	f.Resume()
	if err := hear(c, long); err != nil {
		t.Errorf("what was held back: %v", err)
	}
	f.Delay(50 * time.Millisecond)
	begun := time.Now()
	if err := say(c, long); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 100*time.Millisecond {
		t.Errorf("two delays of 50 ms took %v", took)
	}
}

func TestFlakyCutAndRefuse(t *testing.T) {
	f := NewFlaky(t, echo(t))
	c := dial(t, f.Addr)
	if err := say(c, long); err != nil {
		t.Fatal(err)
	}
	f.Cut()
	if err := hear(c, long); err == nil {
		t.Error("heard after Cut")
	}
	if err := say(dial(t, f.Addr), long); err != nil {
		t.Errorf("a new connection after Cut: %v", err)
	}
	f.Refuse(true)
	if c, err := net.Dial("tcp", f.Addr); err == nil {
		if err := say(c, long); err == nil {
			t.Error("served while refusing")
		}
		c.Close()
	}
	f.Refuse(false)
	if err := say(dial(t, f.Addr), long); err != nil {
		t.Errorf("after refusing: %v", err)
	}
}
