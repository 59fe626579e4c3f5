package bodycheck

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"

	"reveille/gateway/api"
)

// Limits of what sounds may announce. Engines size their buffers by it.
const (
	maxFLACSamples = 4 * maxSoundBytes // of a FLAC file, over its channels; twice as many as an ADPCM file may hold
	samplesPerByte = 6554              // at most: a FLAC frame of 10 bytes may hold 65,535; packets of Vorbis and Opus hold less
	maxTags        = 16                // ID3v2 tags before a sound
)

// seconds adds the length of a sound to those of the request. Its rate must be a usual one: engines convert it, so that a low
// one makes much of little.
func (m *media) seconds(param string, rate, samples uint64) *api.Error {
	if rate < 4000 || rate > 384_000 || samples == 0 {
		return api.New(api.InvalidType, "A sound's header must tell its length and a sample rate between 4 and 384 kHz.").With(param)
	}
	if samples/rate > maxSoundSeconds {
		return tooMuch(param, "A sound may last at most %d seconds.", maxSoundSeconds)
	}
	if m.soundSeconds += int(samples / rate); m.soundSeconds > maxSoundSeconds {
		return tooMuch(param, "The sounds of a request may last at most %d seconds together.", maxSoundSeconds)
	}
	return nil
}

// damagedSound refuses a sound in a form.
func damagedSound(param, form string) *api.Error {
	return api.Newf(api.InvalidType, "This %s file is damaged, or announces more than it can hold.", form).With(param)
}

// skipTags skips the ID3v2 tags before a sound and returns whether there were any; ok is false where they do not end.
func skipTags(b *bufio.Reader) (tagged, ok bool) {
	for range maxTags {
		head, _ := b.Peek(10)
		if len(head) < 10 || string(head[:3]) != "ID3" {
			return tagged, true
		}
		length := len(head) + int(head[6]&0x7F)<<21 + int(head[7]&0x7F)<<14 + int(head[8]&0x7F)<<7 + int(head[9]&0x7F)
		if head[5]&0x10 != 0 { // a footer
			length += 10
		}
		if _, err := b.Discard(length); err != nil {
			return true, false
		}
		tagged = true
	}
	return tagged, false
}

// wav checks a WAV file by its last format before its data, and by the bytes that it has.
func (m *media) wav(param string, b *bufio.Reader, size int) *api.Error {
	var rate, perFrame, frames uint64
	_, _ = b.Discard(12)
	for range 64 { // chunks before the data
		var chunk [8]byte
		if _, err := io.ReadFull(b, chunk[:]); err != nil {
			break
		}
		length := int64(binary.LittleEndian.Uint32(chunk[4:]))
		switch string(chunk[:4]) {
		case "data":
			if perFrame == 0 {
				return damagedSound(param, "WAV")
			}
			return m.seconds(param, rate, frames)
		case "fmt ":
			f, err := b.Peek(int(min(length, 18)))
			// A decoder reads 16 bytes, then the length of an extension, which must lie inside the chunk.
			if err != nil || length < 16 || length == 17 || length > 16 && length < 18+int64(binary.LittleEndian.Uint16(f[16:])) {
				return damagedSound(param, "WAV")
			}
			rate, perFrame = uint64(binary.LittleEndian.Uint32(f[4:])), uint64(binary.LittleEndian.Uint16(f[12:]))
			channels := uint64(binary.LittleEndian.Uint16(f[2:]))
			// Some decoders take the frame's size from its samples.
			if n := channels * uint64(binary.LittleEndian.Uint16(f[14:])) / 8; n > 0 {
				perFrame = min(perFrame, n)
			}
			if perFrame == 0 {
				return damagedSound(param, "WAV")
			}
			frames = max(1, uint64(size)/perFrame)
			if format := binary.LittleEndian.Uint16(f); format != 1 && format != 3 && format != 0xFFFE {
				frames = max(1, 2*uint64(size)/max(1, channels)) // ADPCM has half a byte for a sample
			}
		}
		if _, err := io.CopyN(io.Discard, b, length+length&1); err != nil {
			break
		}
	}
	return damagedSound(param, "WAV")
}

// flac checks a FLAC file by what its first block, STREAMINFO, announces.
func (m *media) flac(param string, head []byte, size int) *api.Error {
	// The rate is in the 20 bits at byte 18, the channels in the next 3, the samples in the 36 bits that end at byte 26.
	v := binary.BigEndian.Uint64(head[18:26])
	rate, channels, samples := v>>44, v>>41&7+1, v&(1<<36-1)
	if samples > uint64(size)*samplesPerByte {
		return damagedSound(param, "FLAC")
	}
	if samples*channels > maxFLACSamples {
		return tooMuch(param, "A FLAC file may have at most %d samples.", maxFLACSamples)
	}
	return m.seconds(param, rate, samples)
}

// ogg checks an Ogg file by the highest position that a page tells, and by the lowest rate that a stream tells.
func (m *media) ogg(param string, r io.Reader, size int) *api.Error {
	var rate, end uint64
	lowest := func(v uint64) {
		if rate == 0 || v < rate {
			rate = v
		}
	}
	s := scanner{marks: []string{"OggS\x00", "\x01vorbis", "OpusHead", "fLaC"}, found: func(_, at []byte) {
		switch {
		case at[0] == 'f':
			v := binary.BigEndian.Uint64(at[18:26])
			lowest(v >> 44)
			end = max(end, v&(1<<36-1))
		case at[0] == 1:
			lowest(uint64(binary.LittleEndian.Uint32(at[12:])))
		case at[1] == 'p':
			lowest(48_000)
		default:
			if n := binary.LittleEndian.Uint64(at[6:]); n != 1<<64-1 { // no packet ends there
				end = max(end, n)
			}
		}
	}}
	if _, err := io.Copy(&s, r); ignoreEnd(err) != nil {
		return damagedSound(param, "Ogg")
	}
	s.look(true)
	if end > uint64(size)*samplesPerByte {
		return damagedSound(param, "Ogg")
	}
	if rate == 0 || end == 0 { // a codec that no engine here sizes buffers for
		return nil
	}
	return m.seconds(param, rate, end)
}

// mp3Frames returns a scanner that checks how many frames an MP3 file of size bytes announces. The header that tells lies in the
// first frame that a decoder takes, which may stand behind anything else, so it is looked for everywhere.
func (m *media) mp3Frames(param string, size int, refused **api.Error) *scanner {
	return &scanner{marks: []string{"Xing", "Info", "VBRI"}, found: func(before, at []byte) {
		vbri := at[0] == 'V'
		frames := uint64(binary.BigEndian.Uint32(at[8:]))
		if vbri {
			frames = uint64(binary.BigEndian.Uint32(at[14:]))
		}
		if *refused != nil || !vbri && at[7]&1 == 0 || frames == 0 || frames == 1<<32-1 { // it tells nothing
			return
		}
		rate, samples, least, ok := mp3Frame(before, vbri)
		switch {
		case !ok:
		case frames > uint64(size)/least+2:
			*refused = damagedSound(param, "MP3")
		default:
			*refused = m.seconds(param, rate, frames*samples)
		}
	}}
}

// mp3Frame finds the MPEG header of the frame whose announcement begins behind before. It returns the frame's rate and samples
// and the least bytes that such a frame has.
// Source: ISO 11172-3, 2.4.1, and 13818-3
func mp3Frame(before []byte, vbri bool) (rate, samples, least uint64, ok bool) {
	for _, back := range []int{13, 15, 21, 23, 36, 38} { // the header, a checksum or none, and the side information
		if len(before) < back {
			continue
		}
		h := before[len(before)-back:]
		layer := 4 - h[1]>>1&3 // 4 is none
		if h[0] != 0xFF || h[1]&0xF0 != 0xF0 && h[1]&0xFE != 0xE2 || layer == 4 || h[2]>>4 == 15 || h[2]>>2&3 == 3 {
			continue
		}
		first, mono := h[1]&8 != 0, h[3]>>6 == 3 // MPEG-1
		side := 17
		if first && !mono {
			side = 32
		} else if !first && mono {
			side = 9
		}
		if vbri {
			side = 32
		}
		if h[1]&1 == 0 && !vbri {
			side += 2
		}
		if 4+side != back {
			continue
		}
		rate, samples = []uint64{44_100, 48_000, 32_000}[h[2]>>2&3], 1152
		bitrate := uint64(8_000)
		if !first {
			rate /= 2
			if h[1]&0x10 == 0 { // MPEG-2.5
				rate /= 2
			}
		}
		if first || layer == 1 {
			bitrate = 32_000
		}
		switch {
		case layer == 1:
			samples = 384
		case layer == 3 && !first:
			samples = 576
		}
		return rate, samples, samples / 8 * bitrate / rate, true
	}
	return 0, 0, 0, false
}

// What a scanner shows of the text around a mark.
const (
	textBefore = 40
	textAfter  = 40
)

// scanner is a writer that calls found for each place where one of marks begins: before is what stands before it, at most
// textBefore bytes, and at is what begins there, textAfter bytes with zeros behind the end.
type scanner struct {
	marks []string
	found func(before, at []byte)

	buf        []byte
	have, from int // bytes in buf; where unseen marks may begin
}

func (s *scanner) Write(p []byte) (int, error) {
	if s.buf == nil {
		s.buf = make([]byte, 32<<10)
	}
	for rest := p; len(rest) > 0; {
		n := copy(s.buf[s.have:len(s.buf)-textAfter], rest)
		s.have, rest = s.have+n, rest[n:]
		if s.have == len(s.buf)-textAfter {
			s.look(false)
		}
	}
	return len(p), nil
}

// look finds the marks in what was written; end tells that no more will come.
func (s *scanner) look(end bool) {
	to := max(s.from, s.have-textAfter) // marks that begin before it are seen now
	if end {
		clear(s.buf[s.have:])
		to = s.have
	}
	for _, mark := range s.marks {
		for p := s.from; p < to; p++ {
			i := bytes.Index(s.buf[p:min(to+len(mark)-1, s.have)], []byte(mark))
			if i < 0 {
				break
			}
			p += i
			s.found(s.buf[max(0, p-textBefore):p], s.buf[p:p+textAfter])
		}
	}
	keep := max(0, to-textBefore)
	s.have = copy(s.buf, s.buf[keep:s.have])
	s.from = to - keep
}
