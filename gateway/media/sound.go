package media

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"

	"reveille/gateway/api"
)

// Limits of what the headers of sounds may announce. Engines allocate by it.
const (
	maxFLACSamples = 4 * maxSoundBytes // of a FLAC file, over its channels; twice as many as an ADPCM file may hold
	samplesPerByte = 6554              // at most: a FLAC frame of 10 bytes may hold 65,535; packets of Vorbis and Opus hold less
	maxTags        = 16                // ID3v2 tags before a sound
	minBytes       = 500               // of a FLAC file for a second: a frame of silence takes 10 bytes and may last for one
	chance         = 5                 // seconds of MPEG frames that other data may hold by chance
	shortest       = 20                // of a second is the least that a sound lasts
	maxTrim        = 2 * 4095          // samples that an MP3 file may tell decoders to leave out, and their own delay
)

// seconds adds the length of a sound to the request's total and checks both against most. The rate must be a usual one: engines
// resample, so a low rate turns few bytes into many samples. llama-server aborts on a sound of one sample.
func (c *Check) seconds(param string, rate, samples uint64, most int) *api.Error {
	if rate < 4000 || rate > 384_000 || samples == 0 {
		return api.New(api.InvalidType, "A sound's header must tell its length and a sample rate between 4 and 384 kHz.").WithParam(param)
	}
	if samples < rate/shortest {
		return tooMuch(param, "A sound must last at least %d milliseconds.", 1000/shortest)
	}
	if samples/rate > uint64(most) {
		return tooMuch(param, "A sound may last at most %d seconds here.", most)
	}
	if c.soundSeconds += int(samples / rate); c.soundSeconds > most {
		return tooMuch(param, "The sounds of a request may last at most %d seconds together.", most)
	}
	return nil
}

// damagedSound refuses a sound in a form.
func damagedSound(param, form string) *api.Error {
	return api.Newf(api.InvalidType, "This %s file is damaged, or announces more than it can hold.", form).WithParam(param)
}

// skipTags skips the ID3v2 tags before a sound and reports whether there were any; ok is false if a tag is cut off.
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

// wav checks a WAV file by its format, which stands once before its data, and by the data that it has. Decoders have no reason
// to refuse what it accepts.
func (c *Check) wav(param string, b *bufio.Reader, size, most int) *api.Error {
	riff, err := b.Peek(12)
	if err != nil || binary.LittleEndian.Uint32(riff[4:]) < 36 {
		return damagedSound(param, "WAV")
	}
	_, _ = b.Discard(len(riff))
	left := int64(size - len(riff))
	var f wavFormat
	for range 64 { // chunks before the data
		var chunk [8]byte
		if _, err := io.ReadFull(b, chunk[:]); err != nil {
			break
		}
		left -= int64(len(chunk))
		length := int64(binary.LittleEndian.Uint32(chunk[4:]))
		switch string(chunk[:4]) {
		case "data":
			if f.perFrame == 0 {
				return damagedSound(param, "WAV")
			}
			return c.wavData(param, b, f, min(length, left), most)
		case "fmt ":
			var text [40]byte
			if f.perFrame != 0 || length < 16 || length > int64(len(text)) || length&1 != 0 {
				return damagedSound(param, "WAV")
			}
			if _, err := io.ReadFull(b, text[:length]); err != nil {
				return damagedSound(param, "WAV")
			}
			var e *api.Error
			if f, e = readWAVFormat(param, text[:length]); e != nil {
				return e
			}
			length, left = 0, left-length
		}
		n, err := io.CopyN(io.Discard, b, length+length&1)
		if left -= n; err != nil {
			break
		}
	}
	return damagedSound(param, "WAV")
}

// wavData checks the samples of a WAV file, and how long they last: as many bytes as their chunk announces, or as there are.
func (c *Check) wavData(param string, b *bufio.Reader, f wavFormat, length int64, most int) *api.Error {
	n, err := io.CopyN(&floats{bytes: f.floatBytes}, b, length)
	switch {
	case errors.Is(err, errLoud):
		return api.Newf(api.InvalidType, "The samples of a WAV file of floats must be between -%d and %d.", maxSample, maxSample).WithParam(param)
	case ignoreEnd(err) != nil:
		return damagedSound(param, "WAV")
	}
	return c.seconds(param, f.rate, uint64(n)/f.perFrame, most)
}

// maxSample is the largest float that a sample may be; full scale is 1. What is not finite, or has no finite square, makes an
// engine's encoder write NaN into the cache that all requests share, where it spoils the answers to later ones.
const maxSample = 16

// errLoud is the error of writing a sample beyond maxSample.
var errLoud = errors.New("a sample is too loud, or no number")

// floats is a writer that looks for samples beyond maxSample.
type floats struct {
	bytes   int    // of a sample, 0 for samples that are no floats
	partial []byte // the beginning of a sample
}

func (s *floats) Write(p []byte) (int, error) {
	if s.bytes == 0 {
		return len(p), nil
	}
	n := len(p)
	if have := len(s.partial); have > 0 {
		take := min(s.bytes-have, len(p))
		s.partial, p = append(s.partial, p[:take]...), p[take:]
		if len(s.partial) < s.bytes {
			return n, nil
		}
		if s.loud(s.partial) {
			return 0, errLoud
		}
		s.partial = s.partial[:0]
	}
	for ; len(p) >= s.bytes; p = p[s.bytes:] {
		if s.loud(p) {
			return 0, errLoud
		}
	}
	s.partial = append(s.partial, p...)
	return n, nil
}

// loud reports whether the sample that p begins with is beyond maxSample, or no number.
func (s *floats) loud(p []byte) bool {
	if s.bytes == 8 {
		return !(math.Abs(math.Float64frombits(binary.LittleEndian.Uint64(p))) <= maxSample)
	}
	return !(math.Abs(float64(math.Float32frombits(binary.LittleEndian.Uint32(p)))) <= maxSample)
}

// wavFormat is the format of a WAV file's samples.
type wavFormat struct {
	rate       uint64
	perFrame   uint64 // bytes of the samples of all channels
	floatBytes int    // of a sample that is a float, 0 for integers
}

// readWAVFormat reads the chunk of a WAV file that describes its samples.
// Source: Microsoft, Multimedia Programming Interface and Data Specifications 1.0; mmreg.h, WAVEFORMATEXTENSIBLE
func readWAVFormat(param string, f []byte) (out wavFormat, e *api.Error) {
	const integers, floats, extensible = 1, 3, 0xFFFE
	format, channels, bits := binary.LittleEndian.Uint16(f), uint64(binary.LittleEndian.Uint16(f[2:])), uint64(binary.LittleEndian.Uint16(f[14:]))
	out.rate, out.perFrame = uint64(binary.LittleEndian.Uint32(f[4:])), uint64(binary.LittleEndian.Uint16(f[12:]))
	extension := 0
	if len(f) >= 18 {
		extension = int(binary.LittleEndian.Uint16(f[16:]))
	}
	if len(f) == 17 || len(f) >= 18 && 18+extension != len(f) {
		return out, damagedSound(param, "WAV")
	}
	if format == extensible && len(f) == 40 {
		format = binary.LittleEndian.Uint16(f[24:])
	}
	sized := format == integers && (bits == 8 || bits == 16 || bits == 24 || bits == 32) || format == floats && (bits == 32 || bits == 64)
	if !sized || channels == 0 || channels > 8 || out.perFrame != channels*bits/8 {
		return out, api.New(api.InvalidType, "A WAV file must have integers of 8 to 32 bits, or floats, on at most 8 channels.").WithParam(param)
	}
	if format == floats {
		out.floatBytes = int(bits / 8)
	}
	return out, nil
}

// flac checks a FLAC file by what its first block, STREAMINFO, announces.
func (c *Check) flac(param string, head []byte, size int) *api.Error {
	// The rate is in the 20 bits at byte 18, the channels in the next 3, the samples in the 36 bits that end at byte 26.
	v := binary.BigEndian.Uint64(head[18:26])
	rate, channels, samples := v>>44, v>>41&7+1, v&(1<<36-1)
	if samples > uint64(size)*samplesPerByte {
		return damagedSound(param, "FLAC")
	}
	if rate > 0 && samples/rate > uint64(60+size/minBytes) {
		return tooMuch(param, "A FLAC file must have at least %d bytes for each second, but for a minute.", minBytes)
	}
	if samples*channels > maxFLACSamples {
		return tooMuch(param, "A FLAC file may have at most %d samples.", maxFLACSamples)
	}
	return c.seconds(param, rate, samples, maxSoundSeconds)
}

// ogg checks an Ogg file by the highest position that a page tells, and by the lowest rate that a stream tells.
func (c *Check) ogg(param string, r io.Reader, size int) *api.Error {
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
	return c.seconds(param, rate, end, maxSoundSeconds)
}

// mp3 checks how long the frames in a file of size bytes can last, and how long the file tells that they last.
func (c *Check) mp3(param string, b *bufio.Reader, size, most int) *api.Error {
	var meter mp3Meter
	var refused *api.Error
	told := c.mp3Told(param, size, most, &refused)
	_, err := io.Copy(io.MultiWriter(&meter, told), b)
	told.look(true)
	rate, samples := meter.end()
	switch {
	case ignoreEnd(err) != nil, meter.freeForm:
		return damagedSound(param, "MP3")
	case refused != nil:
		return refused
	case most == maxSoundSeconds && (samples == 0 || samples < rate*chance):
		return nil
	}
	return c.seconds(param, rate, samples, most)
}

// mp3Told returns a scanner that checks how many frames an MP3 file of size bytes announces. The header that tells lies in the
// first frame that a decoder takes, which may stand behind anything else, so it is looked for everywhere.
func (c *Check) mp3Told(param string, size, most int, refused **api.Error) *scanner {
	return &scanner{marks: []string{"Xing", "Info", "VBRI"}, found: func(before, at []byte) {
		vbri := at[0] == 'V'
		frames := uint64(binary.BigEndian.Uint32(at[8:]))
		if vbri {
			frames = uint64(binary.BigEndian.Uint32(at[14:]))
		}
		h, ok := mp3Frame(before, vbri)
		if *refused != nil || !ok {
			return
		}
		rate, samples := uint64(h.rate()), uint64(h.samples())
		switch {
		case !vbri && at[7]&1 == 0 || frames == 1<<32-1, frames > uint64(size/(h.samples()/8*h.lowestBitRate()/h.rate())+2):
			*refused = damagedSound(param, "MP3")
		case frames*samples > rate*uint64(most):
			*refused = tooMuch(param, "A sound may last at most %d seconds here.", most)
		case frames*samples < maxTrim+rate/shortest:
			*refused = tooMuch(param, "An MP3 file that tells how long it is must last at least %d samples.", maxTrim+int(rate)/shortest)
		}
	}}
}

// mp3Frame finds the header of the frame whose announcement begins behind before.
func mp3Frame(before []byte, vbri bool) (h mpegHeader, ok bool) {
	for _, back := range []int{13, 15, 21, 23, 36, 38} { // the header, a checksum or none, and the side information
		if len(before) < back {
			continue
		}
		if h, ok = mpegAt(before[len(before)-back:]); !ok {
			continue
		}
		side := 17
		if h.first() && !h.mono() {
			side = 32
		} else if !h.first() && h.mono() {
			side = 9
		}
		if vbri {
			side = 32
		}
		if h.checksum() && !vbri {
			side += 2
		}
		if mpegHeaderSize+side == back {
			return h, true
		}
	}
	return h, false
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
