package engine

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// bufferLine matches llama-server's lines on the buffers that it allocates while it loads. The build that the tests
// use prints them from verbosity 4 on.
var bufferLine = regexp.MustCompile(`(\w+): +(\w+) +(model|KV|RS|output|compute) buffer size *= *(\d{1,9}\.\d{1,6}) MiB`)

// maxReserved bounds how many reserved buffers are counted one by one.
const maxReserved = 64

// buffers adds up the buffers that an engine's log reports. It is safe for concurrent use.
type buffers struct {
	mu       sync.Mutex
	kept     [2]int64                     // model and cache, by place
	reserved map[[2]string]reservedBuffer // compute and output, by function and name: later lines replace smaller ones
}

type reservedBuffer struct {
	place int
	bytes int64
}

// The places of buffers.
const (
	inMain = iota
	onDevice
)

// line adds what a line of the log reports.
func (b *buffers) line(text string) {
	m := bufferLine.FindStringSubmatch(text)
	if m == nil {
		return
	}
	mib, err := strconv.ParseFloat(m[4], 64)
	if err != nil {
		return
	}
	n, place := int64(mib*(1<<20)), onDevice
	if strings.HasPrefix(m[2], "CPU") || strings.HasSuffix(m[2], "_Host") || m[2] == "BLAS" || m[2] == "AMX" {
		place = inMain
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if m[3] != "output" && m[3] != "compute" {
		b.kept[place] += n
		return
	}
	key := [2]string{m[1], m[2] + " " + m[3]}
	if was, known := b.reserved[key]; known && n <= was.bytes || !known && len(b.reserved) >= maxReserved {
		return
	}
	if b.reserved == nil {
		b.reserved = map[[2]string]reservedBuffer{}
	}
	b.reserved[key] = reservedBuffer{place, n}
}

// sum returns the bytes in main memory and on devices, 0 for what the log did not report.
func (b *buffers) sum() (main, device int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	by := b.kept
	for _, r := range b.reserved {
		by[r.place] += r.bytes
	}
	return by[inMain], by[onDevice]
}

// Memory returns the most bytes of main memory and of its devices' own memory that the engine has taken, 0 if unknown.
// Main memory is what its processes held, mapped files included, or what its log says that it allocated, whichever is
// more. Devices are known only from the log of the load.
func (p *Process) Memory() (main, device int64) {
	main, device = p.buffers.sum()
	return max(main, statusBytes(p.pid, "VmHWM")), device
}

// Held returns how many bytes become free when the engine ends: of main memory what is not the copy of a file, and
// what the log reported of devices' own memory; 0 if unknown.
func (p *Process) Held() (main, device int64) {
	_, device = p.buffers.sum()
	return statusBytes(p.pid, "RssAnon", "RssShmem"), device
}
