package policy

import (
	"fmt"
	"testing"
	"time"
)

// benchHost has n residents over all types, every fifth busy, with as many slots as it holds.
func benchHost(name string, n int) Host {
	h := Host{
		Name: name, State: Ready, Devices: CPU | GPU | NPU, Limits: Uniform(-1),
		Budget: map[Devices]int64{GPU: 80 << 30, CPU: 256 << 30},
	}
	for i := range n {
		r := Resident{
			ID: fmt.Sprintf("%s-m%02d", name, i), Type: types[i%len(types)], Devices: GPU, State: ModelLoaded,
			Used: epoch.Add(-time.Duration(i*7919%1000) * time.Second), Memory: 1 << 30,
		}
		if i%5 == 0 {
			r.InFlight = 1
		}
		h.Residents = append(h.Residents, r)
	}
	for i, t := range types {
		h.Limits[i] = 0
		for _, r := range h.Residents {
			if r.Type == t {
				h.Limits[i]++
			}
		}
		h.Limits[i] = max(1, h.Limits[i])
	}
	return h
}

// BenchmarkPlace measures the worst case: 20 hosts with 50 models each, all full, so that every host must look for
// victims.
func BenchmarkPlace(b *testing.B) {
	s := Snapshot{Now: epoch}
	for i := range 20 {
		s.Hosts = append(s.Hosts, benchHost(fmt.Sprintf("h%02d", i), 50))
	}
	want := Model{ID: "new", Type: LLM, Devices: GPU, Memory: 4 << 30}
	b.ReportAllocs()
	for b.Loop() {
		if p := Place(s, want, nil); p.Host != "h00" {
			b.Fatal(p)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	want := Model{ID: "new", Type: LLM, Devices: GPU, Memory: 4 << 30}
	for _, n := range []int{0, 1, 6, 50} {
		h := benchHost("h", n)
		b.Run(fmt.Sprintf("residents=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if a := admit(h, want, 0, time.Second); a.Decision == Refuse {
					b.Fatal(a)
				}
			}
		})
	}
}

// BenchmarkNext measures a long queue in which nothing can pass.
func BenchmarkNext(b *testing.B) {
	h := benchHost("h", 6)
	for i := range h.Residents {
		h.Residents[i].InFlight = 1
	}
	for i := range 50 {
		h.Queue = append(h.Queue, Ticket{ID: fmt.Sprint(i), Model: Model{ID: fmt.Sprint("w", i), Type: types[i%len(types)], Devices: GPU, Memory: 1 << 30}})
	}
	b.ReportAllocs()
	for b.Loop() {
		if s := Next(h, epoch, time.Second); s.Ticket != "" {
			b.Fatal(s)
		}
	}
}
