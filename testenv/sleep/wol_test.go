package sleep

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// A machine of the LAN sleeps by the command that its runner executes, once the warmer has put its host to sleep, and is
// woken by a magic packet for the next request; twice over. While its owner uses it, it stays on. The warmer does so
// only after an operator's sleep and the wake that followed.
func TestWakeOnLAN(t *testing.T) {
	t.Parallel()
	lan := listenForMagic(t, net.HardwareAddr{0, 0x11, 0x22, 0x33, 0x44, 0x55})
	p := emptyPool(t)
	address := fmt.Sprintf("127.0.0.2:%d", testenv.FreePort(t)) // where nothing else takes ports
	p.start(1, fmt.Sprintf(`{driver: wol, mac: "00:11:22:33:44:55", broadcast: %q, address: %q, devices: [cpu]}`, lan.addr, address))
	warmer := p.spawn("warmer", "--idle=200ms", "--host-idle=100ms", "--host-min-up=0s", "--every=100ms")
	offs, used := filepath.Join(p.dir, "offs"), filepath.Join(p.dir, "used")
	proven := func() string { return p.rdb.HGet(t.Context(), "rv:{main}:host:box", "proven").Val() }
	use := func() {
		t.Helper()
		lan.forget()
		answers := p.ask(1)
		lan.wait(t)
		p.boot(testenv.Standin(t), "--runner-addr="+address, "--sleep-command=sh -c 'echo off >> "+offs+"; kill $PPID'", "--awake-while=test -e "+used)
		select {
		case a := <-answers[p.gateways[0]]:
			if !a.OK() {
				t.Fatal(a)
			}
		case <-time.After(2 * kit.Patience):
			t.Fatal("a request has no response")
		}
	}
	use()
	warmer.Await(regexp.MustCompile(`Wake-on-LAN has not woken it`))
	if lines(offs) != 0 || proven() != "" {
		t.Fatalf("proven %q before its first sleep; turned off %d times", proven(), lines(offs))
	}
	if a := calls.Post(t.Context(), client(t), p.gateways[0].URL+"/internal/hosts/box/sleep", "{}"); !a.OK() {
		t.Fatal(a)
	}
	for round := 1; round <= 2; round++ {
		if err := os.WriteFile(used, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		use()
		if proven() != "1" {
			t.Errorf("round %d: not proven", round)
		}
		active := func() string { return p.rdb.HGet(t.Context(), "rv:{main}:host:box", "active_ms").Val() }
		before := active()
		kit.Eventually(t, "a sleep that the machine refuses", func() bool { return active() > before })
		if n := lines(offs); n != round {
			t.Errorf("round %d: the machine was turned off %d times while it was used", round, n)
		}
		if err := os.Remove(used); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, "the machine is off", func() bool {
			return lines(offs) > round && p.rdb.HGet(t.Context(), "rv:{main}:host:box", "state").Val() == "asleep" &&
				p.rdb.HGet(t.Context(), "rv:{main}:host:box", "sleep_token").Val() == ""
		})
	}
	if n := lines(offs); n != 3 {
		t.Errorf("the machine was turned off %d times, want 3", n)
	}
}

// magic hears the packets of a LAN.
type magic struct {
	addr  string
	heard chan struct{} // capacity 1: a magic packet came
}

// listenForMagic hears the magic packets for a machine until the test ends. Another packet fails the test.
func listenForMagic(t *testing.T, mac net.HardwareAddr) *magic {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Repeat([]byte{0xFF}, 6), bytes.Repeat(mac, 16)...)
	m := &magic{addr: conn.LocalAddr().String(), heard: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2000)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if !bytes.Equal(buf[:n], want) {
				t.Errorf("a packet of %d bytes that is not magic: %x", n, buf[:n])
				continue
			}
			select {
			case m.heard <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return m
}

// forget drops a packet that was heard before.
func (m *magic) forget() {
	select {
	case <-m.heard:
	default:
	}
}

// wait waits for a packet.
func (m *magic) wait(t *testing.T) {
	t.Helper()
	select {
	case <-m.heard:
	case <-time.After(kit.Patience):
		t.Fatal("no magic packet came")
	}
}
