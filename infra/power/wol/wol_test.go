package wol_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/wol"
	"reveille/testenv/waketest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	mac    = "00:11:22:33:44:55"
	magic  = "ffffffffffff" + "001122334455001122334455001122334455001122334455001122334455001122334455001122334455001122334455" + "001122334455001122334455001122334455001122334455001122334455001122334455001122334455001122334455"
	secure = "0a0b0c0d0e0f"
)

func TestPacket(t *testing.T) {
	hw, _ := net.ParseMAC(mac)
	for name, tc := range map[string]struct {
		mac      net.HardwareAddr
		password string
		want     string
	}{
		"plain":        {hw, "", magic},
		"six bytes":    {hw, secure, magic + secure},
		"four bytes":   {hw, "c0a80001", magic + "c0a80001"},
		"bad password": {hw, "01", ""},
		"long address": {append(hw, 1, 2), "", ""},
		"none":         {nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			password, _ := hex.DecodeString(tc.password)
			p, err := wol.Packet(tc.mac, password)
			if hex.EncodeToString(p) != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%x, %v", p, err)
			}
		})
	}
}

// machine listens for its magic packet, compares every byte, and turns itself on: its runner's port then answers.
type machine struct {
	t      *testing.T
	packet []byte
	udp    net.PacketConn
	addr   string
	deaf   int // number of packets to lose

	mu     sync.Mutex
	runner net.Listener
	starts int
	wrong  int
	work   sync.WaitGroup
}

func newMachine(t *testing.T, packet string) *machine {
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, udp: udp, addr: probe.Addr().String()}
	_ = probe.Close()
	m.packet, _ = hex.DecodeString(packet)
	m.work.Go(m.listen)
	t.Cleanup(func() { _ = udp.Close(); m.off(); m.work.Wait() })
	return m
}

func (m *machine) listen() {
	buf := make([]byte, 2000)
	for {
		n, _, err := m.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		m.mu.Lock()
		switch {
		case !bytes.Equal(buf[:n], m.packet):
			m.wrong++
		case m.deaf > 0:
			m.deaf--
		case m.runner == nil:
			m.onLocked()
		}
		m.mu.Unlock()
	}
}

func (m *machine) onLocked() {
	ln, err := net.Listen("tcp", m.addr)
	if err != nil {
		m.t.Error("the runner's port is in use:", err)
		return
	}
	m.runner = ln
	m.starts++
	m.work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
}

func (m *machine) off() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runner != nil {
		_ = m.runner.Close()
		m.runner = nil
	}
}

func (m *machine) host() catalog.Host {
	return catalog.Host{Name: "box", Driver: catalog.DriverWoL, MAC: mac, Address: m.addr, Broadcast: m.udp.LocalAddr().String()}
}

func (m *machine) config() wol.Config {
	return wol.Config{Repeat: 10 * time.Millisecond, Settle: 20 * time.Millisecond, StateTimeout: 30 * time.Second}
}

// withRunner is the driver together with a runner that turns its machine off when the pool has put it to sleep, and
// again if a packet from another call has turned it on meanwhile.
type withRunner struct {
	*wol.Driver
	m *machine
}

func (w withRunner) Sleep(ctx context.Context, h catalog.Host) error {
	if h.MAC == mac {
		w.m.off()
		asleep := make(chan struct{})
		var watch sync.WaitGroup
		defer watch.Wait()
		defer close(asleep)
		watch.Go(func() {
			for {
				select {
				case <-asleep:
					return
				case <-time.After(20 * time.Millisecond):
					w.m.off()
				}
			}
		})
	}
	return w.Driver.Sleep(ctx, h)
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		m := newMachine(t, magic)
		return waketest.Fixture{
			Driver: withRunner{wol.New(m.config()), m}, Host: m.host(), Strange: &catalog.Host{Name: "x", MAC: "nonsense"},
			Starts: func() int {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.starts
			},
		}
	})
}

func TestLostPacketsAndPassword(t *testing.T) {
	m := newMachine(t, magic+secure)
	m.mu.Lock()
	m.deaf = 3
	m.mu.Unlock()
	h := m.host()
	h.SecureOn = "0a:0b:0c:0d:0e:0f"
	if err := wol.New(m.config()).Wake(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.starts != 1 || m.wrong != 0 || m.deaf != 0 {
		t.Error("starts", m.starts, "wrong", m.wrong, "deaf", m.deaf)
	}
}

func TestAMachineThatDoesNotAnswer(t *testing.T) {
	m := newMachine(t, "00")
	cfg := m.config()
	cfg.StateTimeout = 50 * time.Millisecond
	if err := wol.New(cfg).Wake(t.Context(), m.host()); !errors.Is(err, power.ErrFailed) || !strings.Contains(err.Error(), "still off") {
		t.Error("wake:", err)
	}
	m.mu.Lock()
	m.onLocked()
	m.mu.Unlock()
	if err := wol.New(cfg).Sleep(t.Context(), m.host()); !errors.Is(err, power.ErrFailed) || !strings.Contains(err.Error(), "still on") {
		t.Error("sleep:", err)
	}
}

func TestAHostWithoutAddress(t *testing.T) {
	m := newMachine(t, magic)
	h := m.host()
	h.Address = ""
	d := wol.New(m.config())
	if err := d.Wake(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		m.mu.Lock()
		n := m.starts
		m.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no packet arrived")
		}
	}
	if p, err := d.State(t.Context(), h); p != power.Unknown || err != nil {
		t.Error(p, err)
	}
	if err := d.Sleep(t.Context(), h); err != nil {
		t.Error(err)
	}
}

func TestBroadcastIsTheDefault(t *testing.T) {
	h := catalog.Host{Name: "box", MAC: mac}
	err := wol.New(wol.Config{}).Wake(t.Context(), h)
	if err != nil && !strings.Contains(err.Error(), "unreachable") && !strings.Contains(err.Error(), "permitted") {
		t.Error("no broadcast was attempted:", err)
	}
}

// reports counts the packets that a pool learns of.
type reports struct {
	power.Pool
	packets int
}

func (r *reports) ReportPacket(context.Context, string) error { r.packets++; return nil }

// The pool learns of a packet only if one was needed: a machine that is on proves nothing.
func TestPacketsAreReported(t *testing.T) {
	m, pool := newMachine(t, magic), &reports{}
	d := wol.New(m.config()).WithPool(pool)
	m.mu.Lock()
	m.onLocked()
	m.mu.Unlock()
	if err := d.Wake(t.Context(), m.host()); err != nil || pool.packets != 0 {
		t.Fatalf("a wake of a machine that is on: %v, %d packets reported", err, pool.packets)
	}
	m.off()
	if err := d.Wake(t.Context(), m.host()); err != nil || pool.packets == 0 {
		t.Fatalf("a wake of a machine that is off: %v, %d packets reported", err, pool.packets)
	}
}

// A machine that is shutting down when it is woken gets its packets once it is off, and one that is on gets none.
func TestWakeOfAMachineThatIsOn(t *testing.T) {
	m := newMachine(t, magic)
	m.mu.Lock()
	m.onLocked()
	m.mu.Unlock()
	cfg := m.config()
	cfg.Settle = 300 * time.Millisecond
	starts := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.starts
	}
	if err := wol.New(cfg).Wake(t.Context(), m.host()); err != nil || starts() != 1 {
		t.Fatalf("it is on: %v, %d starts", err, starts())
	}
	cfg.Settle = 30 * time.Second
	log := &power.Tail{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	woken := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { woken <- wol.New(cfg).Wake(ctx, m.host()) }()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(log.LastLine(), "in case the machine is shutting down"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(log.LastLine())
		}
	}
	m.off()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(log.LastLine(), "the machine is shutting down"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(log.LastLine())
		}
	}
	if n := starts(); n != 1 {
		t.Errorf("%d starts while it shuts down", n)
	}
	cancel()
	if err := <-woken; err == nil {
		t.Error("a wake that was given up ended well")
	}
}
