package engine

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// bufferLine matches llama-server's lines on the buffers that it allocates while it loads. The build used by the tests
// prints them at verbosity 4 and above, which package launch sets for GPUs.
var bufferLine = regexp.MustCompile(`(\w+): +(\w+) +(model|KV|RS|output|compute) buffer size *= *(\d{1,9}\.\d{1,6}) MiB`)

// maxReservedBuffers bounds the reserved buffers that are counted; further ones are ignored.
const maxReservedBuffers = 64

// buffers adds up the buffers that an engine's log reports. It is safe for concurrent use.
type buffers struct {
	mu        sync.Mutex
	allocated [2]int64                     // model and cache, by place
	reserved  map[[2]string]reservedBuffer // compute and output, by function and name; a larger later line replaces a smaller one
}

type reservedBuffer struct {
	place int
	bytes int64
}

// The places of buffers.
const (
	mainMemory = iota
	deviceMemory
)

// addLine adds the buffer that a line of the log reports.
func (b *buffers) addLine(text string) {
	m := bufferLine.FindStringSubmatch(text)
	if m == nil {
		return
	}
	mib, err := strconv.ParseFloat(m[4], 64)
	if err != nil {
		return
	}
	n, place := int64(mib*(1<<20)), deviceMemory
	if strings.HasPrefix(m[2], "CPU") || strings.HasSuffix(m[2], "_Host") || m[2] == "BLAS" || m[2] == "AMX" {
		place = mainMemory
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if m[3] != "output" && m[3] != "compute" {
		b.allocated[place] += n
		return
	}
	key := [2]string{m[1], m[2] + " " + m[3]}
	if previous, known := b.reserved[key]; known && n <= previous.bytes || !known && len(b.reserved) >= maxReservedBuffers {
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
	total := b.allocated
	for _, r := range b.reserved {
		total[r.place] += r.bytes
	}
	return total[mainMemory], total[deviceMemory]
}

// CheckGPU returns a [*LoadError] with [ErrNoGPU] if the log of the load, which must be complete (Spec.ReportsBuffers),
// reports buffers and none of them is on a device. known is false if it reports no buffers at all.
func (p *Process) CheckGPU() (known bool, err error) {
	main, device := p.buffers.sum()
	if device > 0 || main == 0 {
		return device > 0, nil
	}
	return true, &LoadError{Kind: ErrNoGPU, Detail: fmt.Sprintf(
		"all of its %d MiB are in main memory; make sure that the host's GPU driver works and that the engine is a build for it", main>>20)}
}

// Memory returns the maximum main memory and device memory, in bytes, that the engine has taken, 0 if unknown. Main
// memory is what its processes held, mapped files included, or what its log reports as allocated, whichever is more.
// Device memory is known only from the log of the load.
func (p *Process) Memory() (main, device int64) {
	main, device = p.buffers.sum()
	return max(main, statusBytes(p.pid, "VmHWM")), device
}

// Held returns how many bytes become free when the engine exits: main memory that is not backed by a file, and the
// device memory that the log reported; 0 if unknown.
func (p *Process) Held() (main, device int64) {
	_, device = p.buffers.sum()
	return statusBytes(p.pid, "RssAnon", "RssShmem"), device
}
