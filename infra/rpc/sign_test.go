package rpc

import (
	"crypto/sha256"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"reveille/testenv/kit"
)

func TestVerify(t *testing.T) {
	s := NewSigner([]byte("secret"))
	v := NewVerifier([]byte("secret"))
	c := Call{Method: "POST", Path: "/v1/chat/completions", Host: "gpu-1", Model: "m", Length: 7}
	auth := s.Sign(c)
	if g, err := v.Verify(auth, c, time.Now()); err != nil || g != s.Gateway() {
		t.Fatal(err)
	}
	if _, err := v.Verify(auth, c, time.Now()); !errors.Is(err, ErrReplay) {
		t.Errorf("second time: %v, want ErrReplay", err)
	}
	changes := map[string]func(*Call){
		"method": func(c *Call) { c.Method = "GET" }, "path": func(c *Call) { c.Path += "x" },
		"model": func(c *Call) { c.Model = "n" }, "length": func(c *Call) { c.Length = 8 },
		"cache tenant":   func(c *Call) { c.CacheTenant = "other" },
		"shifted tenant": func(c *Call) { c.Model, c.CacheTenant = "", "m" },
		"shifted":        func(c *Call) { c.Path, c.Model = c.Path+"\x00m", "" },
		"shifted length": func(c *Call) { c.Model, c.Length = "m\x00", 7 },
	}
	for name, change := range changes {
		d := c
		change(&d)
		if _, err := v.Verify(s.Sign(c), d, time.Now()); !errors.Is(err, ErrSignature) {
			t.Errorf("%s changed: %v, want ErrSignature", name, err)
		}
	}
	other := c
	other.Host = "gpu-2"
	if _, err := v.Verify(s.Sign(c), other, time.Now()); !errors.Is(err, ErrHost) {
		t.Errorf("another host: %v, want ErrHost", err)
	}
	if _, err := v.Verify(strings.Replace(s.Sign(c), " gpu-1 ", " gpu-2 ", 1), other, time.Now()); !errors.Is(err, ErrSignature) {
		t.Errorf("host changed in the header: %v, want ErrSignature", err)
	}
	if _, err := NewVerifier([]byte("other")).Verify(s.Sign(c), c, time.Now()); !errors.Is(err, ErrSignature) {
		t.Errorf("other secret: %v", err)
	}
	if _, err := v.Verify(s.Sign(c), c, time.Now().Add(10*time.Minute)); !errors.Is(err, ErrTime) {
		t.Errorf("clock off: %v, want ErrTime", err)
	}
	s.Correct("gpu-1", time.Now().Add(10*time.Minute).UnixMilli())
	if _, err := v.Verify(s.Sign(c), c, time.Now().Add(10*time.Minute)); err != nil {
		t.Errorf("corrected clock: %v", err)
	}
}

// TestClockOfOneHost: what one runner says of its clock changes no call to another, and absurd clocks change none.
func TestClockOfOneHost(t *testing.T) {
	s, v := NewSigner([]byte("secret")), NewVerifier([]byte("secret"))
	honest := Call{Method: "POST", Path: "/x", Host: "honest"}
	for _, off := range []time.Duration{10 * time.Minute, -59 * time.Minute, 2 * time.Hour, -1000 * time.Hour} {
		s.Correct("rogue", time.Now().Add(off).UnixMilli())
		if _, err := v.Verify(s.Sign(honest), honest, time.Now()); err != nil {
			t.Errorf("a call to another host after a clock of %v: %v", off, err)
		}
	}
	for _, ms := range []int64{0, -1, math.MaxInt64, math.MinInt64} {
		s.Correct("honest", ms)
		if _, err := v.Verify(s.Sign(honest), honest, time.Now()); err != nil {
			t.Errorf("a call to the host itself after a clock of %d: %v", ms, err)
		}
	}
}

// Hosts come and go; their clocks are not kept for ever.
func TestClocksAreBounded(t *testing.T) {
	s := NewSigner([]byte("secret"))
	for i := range 3 * maxOffsets {
		s.Correct(strconv.Itoa(i), time.Now().UnixMilli())
	}
	n := 0
	s.offsets.Range(func(any, any) bool { n++; return true })
	if n > maxOffsets {
		t.Errorf("%d clocks are kept, want at most %d", n, maxOffsets)
	}
}

// What a verifier's predecessor may have accepted is refused as too old; the time that it tells makes the next call
// good.
func TestVerifierAfterRestart(t *testing.T) {
	s := NewSigner([]byte("secret"))
	c := Call{Method: "POST", Host: "gpu-1"}
	old := s.Sign(c)
	time.Sleep(2 * time.Millisecond)
	v := NewVerifier([]byte("secret"))
	if _, err := v.Verify(old, c, time.Now()); !errors.Is(err, ErrTime) {
		t.Errorf("signed before the start: %v, want ErrTime", err)
	}
	s.Correct("gpu-1", time.Now().Add(-time.Second).UnixMilli())
	if _, err := v.Verify(s.Sign(c), c, time.Now()); !errors.Is(err, ErrTime) {
		t.Errorf("clock behind the start: %v, want ErrTime", err)
	}
	s.Correct("gpu-1", time.Now().UnixMilli())
	if _, err := v.Verify(s.Sign(c), c, time.Now()); err != nil {
		t.Errorf("after the correction: %v", err)
	}
	s.Correct("gpu-1", time.Now().Add(50*time.Second).UnixMilli())
	if _, err := v.Verify(s.Sign(c), c, time.Now().Add(70*time.Second)); err != nil {
		t.Errorf("a clock behind by less than the skew, long after the start: %v", err)
	}
}

// Calls may overtake one another on their way, and each counts once whatever the order.
func TestConcurrentCalls(t *testing.T) {
	s, v := NewSigner([]byte("secret")), NewVerifier([]byte("secret"))
	c := Call{Method: "POST", Host: "h"}
	var wg sync.WaitGroup
	var accepted atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 100 {
				auth := s.Sign(c)
				for range 2 {
					if _, err := v.Verify(auth, c, time.Now()); err == nil {
						accepted.Add(1)
					} else if !errors.Is(err, ErrReplay) {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := accepted.Load(); n != 800 {
		t.Errorf("%d accepted, want 800", n)
	}
}

// Every counter is accepted at most once, in any order, and always when it is new and not further behind than the
// window.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		seen := map[uint64]bool{}
		top := uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := rapid.Uint64Range(1, top+3*windowBits).Draw(t, "n")
			got := w.accept(n)
			want := !seen[n] && n+windowBits > top
			if got != want {
				t.Fatalf("accept(%d) = %v with top %d, want %v", n, got, top, want)
			}
			seen[n] = true
			top = max(top, n)
		}
	})
}

func TestWindowsAreForgotten(t *testing.T) {
	v := NewVerifier([]byte("s"))
	now := time.Now()
	for range 50 {
		s := NewSigner([]byte("s"))
		if _, err := v.Verify(s.Sign(Call{}), Call{}, now); err != nil {
			t.Fatal(err)
		}
	}
	s := NewSigner([]byte("s"))
	s.Correct("", now.Add(5*time.Minute).UnixMilli())
	if _, err := v.Verify(s.Sign(Call{}), Call{}, now.Add(5*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if len(v.windows) != 1 {
		t.Errorf("%d gateways remembered, want the living one", len(v.windows))
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(NewSigner([]byte("s")).Sign(Call{}))
	f.Add("v2 a 1 2 3")
	f.Add("")
	v := NewVerifier([]byte("other"))
	f.Fuzz(func(t *testing.T, auth string) {
		if _, err := v.Verify(auth, Call{}, time.Now()); err == nil {
			t.Fatal("accepted without the secret")
		}
	})
}

// TestSignAllocates: a warm request pays for the header's text, the parts of it and their hash, and for no buffer.
func TestSignAllocates(t *testing.T) {
	if kit.Race {
		t.Skip("the race detector drops what a sync.Pool holds")
	}
	s, v := NewSigner([]byte("secret")), NewVerifier([]byte("secret"))
	c := Call{Method: "POST", Path: "/v1/chat/completions", Host: "h", Model: "m", Length: 1024}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := v.Verify(s.Sign(c), c, time.Now()); err != nil {
			t.Fatal(err)
		}
	}); n > 3 {
		t.Errorf("%v allocations for each call, want at most 3", n)
	}
}

func BenchmarkSign(b *testing.B) {
	s := NewSigner([]byte("secret"))
	v := NewVerifier([]byte("secret"))
	c := Call{Method: "POST", Path: "/v1/chat/completions", Host: "h", Model: "m", Length: 1024}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(s.Sign(c), c, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}

// A scope is one key's, is the same on all gateways of a pool, and is no other pool's.
func TestScope(t *testing.T) {
	a, b := sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b"))
	s, again, other := NewSigner([]byte("s")), NewSigner([]byte("s")), NewSigner([]byte("t"))
	got := s.Tenant(a)
	if len(got) != 32 || got != again.Tenant(a) {
		t.Errorf("%q, %q", got, again.Tenant(a))
	}
	if got == s.Tenant(b) || got == other.Tenant(a) {
		t.Error("two keys or two pools share a scope")
	}
}
