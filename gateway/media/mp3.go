package media

import "bytes"

// mpegHeader is the header of an MPEG audio frame.
// Source: ISO 11172-3, 2.4.1, and 13818-3
type mpegHeader [4]byte

const mpegHeaderSize = len(mpegHeader{})

// mpegAt returns the header at the beginning of b, if a decoder takes it for one.
func mpegAt(b []byte) (h mpegHeader, ok bool) {
	if len(b) < mpegHeaderSize || b[0] != 0xFF {
		return h, false
	}
	copy(h[:], b)
	return h, (h[1]&0xF0 == 0xF0 || h[1]&0xFE == 0xE2) && h.layer() != 4 && h[2]>>4 != 15 && h[2]>>2&3 != 3
}

func (h mpegHeader) layer() int     { return 4 - int(h[1]>>1&3) } // 4 is none
func (h mpegHeader) first() bool    { return h[1]&8 != 0 }        // MPEG-1
func (h mpegHeader) freeForm() bool { return h[2]>>4 == 0 }       // tells no bit rate
func (h mpegHeader) mono() bool     { return h[3]>>6 == 3 }
func (h mpegHeader) checksum() bool { return h[1]&1 == 0 }

// rate is the frame's sample rate in Hz.
func (h mpegHeader) rate() int {
	rate := []int{44_100, 48_000, 32_000}[h[2]>>2&3]
	if !h.first() {
		rate /= 2
		if h[1]&0x10 == 0 { // MPEG-2.5
			rate /= 2
		}
	}
	return rate
}

// samples is how many samples of a channel the frame has.
func (h mpegHeader) samples() int {
	switch {
	case h.layer() == 1:
		return 384
	case h.layer() == 3 && !h.first():
		return 576
	}
	return 1152
}

// bitRates are in kbit/s, by layer, of MPEG-1 and of the others.
var bitRates = map[bool][4][15]int{
	true: {
		1: {0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448},
		2: {0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384},
		3: {0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320},
	},
	false: {
		1: {0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256},
		2: {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160},
		3: {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160},
	},
}

// lowestBitRate is that of the frame's version and layer, in bit/s.
func (h mpegHeader) lowestBitRate() int { return bitRates[h.first()][h.layer()][1] * 1000 }

// padding is how many bytes the frame has besides those that its bit rate tells.
func (h mpegHeader) padding() int {
	switch {
	case h[2]&2 == 0:
		return 0
	case h.layer() == 1:
		return 4
	}
	return 1
}

// size is how many bytes the frame has, its padding aside.
func (h mpegHeader) size() int {
	n := h.samples() * bitRates[h.first()][h.layer()][h[2]>>4] * 125 / h.rate()
	if h.layer() == 1 {
		n &^= 3
	}
	return n
}

// follows reports whether a decoder takes b for the frame behind one with header h.
func (h mpegHeader) follows(b []byte) bool {
	next, ok := mpegAt(b)
	return ok && (h[1]^next[1])&0xFE == 0 && (h[2]^next[2])&0x0C == 0 && h.freeForm() == next.freeForm()
}

const (
	maxFreeForm = 2304 // bytes of a frame without a bit rate, as far as decoders look
	mp3Ahead    = 2*maxFreeForm + 8
	mp3Window   = 64 << 10
)

// mp3Meter is a writer that adds up how long the MPEG frames in a file can last at most, wherever a decoder begins: it takes a
// frame where another one follows, or the file ends. Frames without a bit rate are refused, since a decoder takes as one
// whatever lies between two headers, down to nothing.
type mp3Meter struct {
	samples  uint64
	rates    map[int]int // frames by sample rate
	first    int         // sample rate of the first frame
	freeForm bool

	buf  []byte
	have int
}

func (m *mp3Meter) Write(p []byte) (int, error) {
	if m.buf == nil {
		m.buf, m.rates = make([]byte, mp3Window), map[int]int{}
	}
	for rest := p; len(rest) > 0; {
		n := copy(m.buf[m.have:], rest)
		m.have, rest = m.have+n, rest[n:]
		if m.have == len(m.buf) {
			m.look(m.have - mp3Ahead)
			m.have = copy(m.buf, m.buf[m.have-mp3Ahead:])
		}
	}
	return len(p), nil
}

// look takes in the frames that begin in the first bytes of the buffer.
func (m *mp3Meter) look(to int) {
	for at := 0; at < to && !m.freeForm; at++ {
		next := bytes.IndexByte(m.buf[at:to], 0xFF)
		if next < 0 {
			return
		}
		at += next
		b := m.buf[at:m.have]
		h, ok := mpegAt(b)
		switch {
		case !ok:
		case h.freeForm():
			m.freeForm = chainsFreely(h, b)
		default:
			n := h.size() + h.padding()
			if n > len(b) || n < len(b) && !h.follows(b[n:]) {
				continue
			}
			m.samples += uint64(h.samples())
			m.rates[h.rate()]++
			if m.first == 0 {
				m.first = h.rate()
			}
		}
	}
}

// chainsFreely reports whether b begins with frames without a bit rate: three at equal distances.
func chainsFreely(h mpegHeader, b []byte) bool {
	for k := mpegHeaderSize; k < min(maxFreeForm, len(b)); k++ {
		next := bytes.IndexByte(b[k:min(maxFreeForm, len(b))], 0xFF)
		if next < 0 {
			return false
		}
		k += next
		if !h.follows(b[k:]) {
			continue
		}
		second, _ := mpegAt(b[k:])
		third := 2*k - h.padding() + second.padding()
		if third <= len(b) && h.follows(b[third:]) {
			return true
		}
	}
	return false
}

// end takes in the rest of the file and returns how long its frames last at most, as rate and samples; 0 samples for none.
// Decoders take the rate of the first frame for the whole file.
func (m *mp3Meter) end() (rate, samples uint64) {
	m.look(m.have)
	lowest := m.first
	for r, n := range m.rates {
		if n >= 3 { // fewer are chance
			lowest = min(lowest, r)
		}
	}
	return uint64(lowest), m.samples
}
