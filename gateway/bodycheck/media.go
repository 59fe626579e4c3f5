package bodycheck

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	_ "image/gif" // registers the format, as the next ones do
	_ "image/jpeg"
	_ "image/png"
	"io"
	"strconv"

	_ "golang.org/x/image/bmp"
	_ "golang.org/x/image/webp"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Limits of the media of one request.
const (
	maxPictures     = 8
	maxPixels       = 40_000_000 // of a picture
	maxPixelsAll    = 64_000_000 // of all pictures
	maxPictureBytes = 20_000_000 // of all pictures, decoded
	maxSounds       = 8
	maxSoundBytes   = 25_000_000 // of all sounds, decoded
	maxSoundSeconds = 2 * 3600   // of a sound whose header tells
	maxMP3Bytes     = 10_000_000 // of one without such a header in a message: at 8 kbit/s nearly three hours
	maxFilmBytes    = 20_000_000
)

// headBytes is how much of a file is read for its dimensions. A JPEG may have
// a preview and a colour profile before them.
const headBytes = 1 << 20

// media counts the media of a request.
type media struct {
	pictures, pixels, pictureBytes int
	sounds, soundBytes             int
}

// picture checks a picture in base64 of about encoded bytes: its format is
// known and its dimensions, which its header tells, are within bounds.
func (m *media) picture(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	return m.pictureFile(param, base64.NewDecoder(base64.StdEncoding, text), base64.StdEncoding.DecodedLen(encoded))
}

// pictureFile is picture for a file of size bytes.
func (m *media) pictureFile(param string, r io.Reader, size int) *api.Error {
	m.pictures++
	m.pictureBytes += size
	if m.pictures > maxPictures {
		return tooMuch(param, "A request may hold at most %d pictures.", maxPictures)
	}
	if m.pictureBytes > maxPictureBytes {
		return tooMuch(param, "The pictures of a request may have at most %d bytes.", maxPictureBytes)
	}
	var seen bytes.Buffer
	c, form, err := image.DecodeConfig(io.TeeReader(io.LimitReader(r, headBytes), &seen))
	if err != nil || c.Width <= 0 || c.Height <= 0 {
		return api.New(api.InvalidType, "A picture must be a PNG, JPEG, WebP, GIF or BMP file; this one is none or is damaged.").With(param)
	}
	if c.Width > maxPixels || c.Height > maxPixels || c.Width*c.Height > maxPixels {
		return tooMuch(param, "A picture may have at most %d megapixels.", maxPixels/1_000_000)
	}
	if m.pixels += c.Width * c.Height; m.pixels > maxPixelsAll {
		return tooMuch(param, "The pictures of a request may have at most %d megapixels together.", maxPixelsAll/1_000_000)
	}
	if form == "png" && checkPNG(bufio.NewReader(io.MultiReader(&seen, r))) != nil {
		return api.New(api.InvalidType, "A PNG file is damaged, or holds more data than its size needs.").With(param)
	}
	return nil
}

// sound checks a sound in base64.
func (m *media) sound(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	return m.soundFile(param, base64.NewDecoder(base64.StdEncoding, text), base64.StdEncoding.DecodedLen(encoded), false)
}

// soundFile checks a sound of size bytes. With others, as in uploads, MP3 files
// and those in formats that are not known here are bounded by the sounds' size
// alone.
func (m *media) soundFile(param string, r io.Reader, size int, others bool) *api.Error {
	m.sounds++
	m.soundBytes += size
	if m.sounds > maxSounds {
		return tooMuch(param, "A request may hold at most %d sounds.", maxSounds)
	}
	if m.soundBytes > maxSoundBytes {
		return tooMuch(param, "The sounds of a request may have at most %d bytes.", maxSoundBytes)
	}
	b := bufio.NewReaderSize(r, 4<<10)
	head, _ := b.Peek(42)
	switch {
	case len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WAVE":
		return wav(param, b, size)
	case len(head) == 42 && string(head[:4]) == "fLaC":
		// STREAMINFO: rate in the 20 bits at byte 18, samples in the 36 bits that end at byte 26.
		v := binary.BigEndian.Uint64(head[18:26])
		return seconds(param, v>>44, v&(1<<36-1))
	case len(head) >= 3 && string(head[:3]) == "ID3", len(head) >= 2 && head[0] == 0xFF && head[1]&0xE0 == 0xE0:
		if size > maxMP3Bytes && !others {
			return tooMuch(param, "An MP3 file may have at most %d bytes.", maxMP3Bytes)
		}
		return nil
	}
	if others {
		return nil
	}
	return api.New(api.InvalidType, "A sound must be a WAV, FLAC or MP3 file; this one is none or is damaged.").With(param)
}

// wav checks a WAV file by its format and the bytes that it has.
func wav(param string, b *bufio.Reader, size int) *api.Error {
	damaged := api.New(api.InvalidType, "A WAV file is damaged.").With(param)
	_, _ = b.Discard(12)
	for range 64 { // chunks before the format
		var chunk [8]byte
		if _, err := io.ReadFull(b, chunk[:]); err != nil {
			return damaged
		}
		length := int64(binary.LittleEndian.Uint32(chunk[4:]))
		if string(chunk[:4]) != "fmt " {
			if _, err := io.CopyN(io.Discard, b, min(length+length&1, int64(size))); err != nil {
				return damaged
			}
			continue
		}
		var f [16]byte
		if _, err := io.ReadFull(b, f[:]); err != nil {
			return damaged
		}
		rate, align := uint64(binary.LittleEndian.Uint32(f[4:])), uint64(binary.LittleEndian.Uint16(f[12:]))
		perSample := uint64(1) // a compressed format may put more than one sample into a byte
		if format := binary.LittleEndian.Uint16(f[:]); format != 1 && format != 3 && format != 0xFFFE {
			perSample = 4
		}
		if align == 0 {
			return damaged
		}
		return seconds(param, rate, max(1, uint64(size)/align*perSample))
	}
	return damaged
}

// seconds checks how long a sound is. Its rate must be a usual one: engines
// convert it, so that a low one makes much of little.
func seconds(param string, rate, samples uint64) *api.Error {
	if rate < 4000 || rate > 384_000 || samples == 0 {
		return api.New(api.InvalidType, "A sound's header must tell its length and a sample rate between 4 and 384 kHz.").With(param)
	}
	if samples/rate > maxSoundSeconds {
		return tooMuch(param, "A sound may last at most %d seconds.", maxSoundSeconds)
	}
	return nil
}

// film checks a video in base64: its container and its size.
func (m *media) film(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	m.pictures++ // each costs an engine as much as pictures do
	if m.pictures > maxPictures {
		return tooMuch(param, "A request may hold at most %d pictures and videos.", maxPictures)
	}
	if m.pictureBytes += base64.StdEncoding.DecodedLen(encoded); m.pictureBytes > maxFilmBytes {
		return tooMuch(param, "The videos of a request may have at most %d bytes.", maxFilmBytes)
	}
	var head [12]byte
	_, _ = io.ReadFull(base64.NewDecoder(base64.StdEncoding, text), head[:])
	switch {
	case string(head[4:8]) == "ftyp", bytes.HasPrefix(head[:], []byte{0x1A, 0x45, 0xDF, 0xA3}), string(head[:4]) == "RIFF" && string(head[8:]) == "AVI ":
		return nil
	}
	return api.New(api.InvalidType, "A video must be an MP4, WebM, Matroska or AVI file; this one is none or is damaged.").With(param)
}

func tooMuch(param, message string, limit int) *api.Error {
	return api.Newf(api.InvalidType, message, limit).With(param)
}

// describes checks a description of a picture. sd-server takes a tag in it for
// settings, which name files and know no bounds.
func describes(name, value []byte) *api.Error {
	if bytes.Contains(value, []byte("sd_cpp_extra_args")) {
		return api.Newf(api.UnsupportedParameter, "'%s' holds settings of the engine, which are not accepted here.", name).With(string(name))
	}
	return nil
}

// size checks the size of a picture that is to be made.
func size(name, value []byte) *api.Error {
	if string(value) == "auto" {
		return nil
	}
	w, h, ok := bytes.Cut(value, []byte("x"))
	width, err := strconv.ParseUint(string(w), 10, 16)
	height, err2 := strconv.ParseUint(string(h), 10, 16)
	if !ok || err != nil || err2 != nil || width*height > maxPixels {
		return wrong(name, "auto, or width and height as in 512x512, of at most 40 megapixels")
	}
	return nil
}
