package bodycheck

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
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
	maxScanned      = 20 * maxPixelsAll
	maxPictureBytes = 20_000_000 // of all pictures, decoded
	maxSounds       = 8
	maxSoundBytes   = 25_000_000 // of all sounds, decoded
	maxSoundSeconds = 2 * 3600   // of all sounds whose headers tell
	maxMP3Bytes     = 10_000_000 // of one without such a header in a message: at 8 kbit/s nearly three hours
	maxFilmBytes    = 20_000_000
)

// headBytes is how much of a file is read for its dimensions. A JPEG may have
// a preview and a colour profile before them.
const headBytes = 1 << 20

// media counts the media of a request.
type media struct {
	pictures, pixels, pictureBytes int
	scanned                        int // pixels, once for each scan of a progressive file
	sounds, soundBytes             int
	soundSeconds                   int
}

// picture checks a picture in base64 of about encoded bytes: its format is
// known and its dimensions, which its header tells, are within bounds.
func (m *media) picture(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	return m.pictureFile(param, &base64Reader{text: text}, base64.StdEncoding.DecodedLen(encoded))
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
	return m.content(param, form, c.Width*c.Height, bufio.NewReaderSize(io.MultiReader(&seen, r), 16<<10))
}

// content checks what a decoder would do with a file of a form, beyond the work for its pixels. BMP and WebP files are not
// read: they have one picture, without passes.
func (m *media) content(param, form string, pixels int, r *bufio.Reader) *api.Error {
	var err error
	switch form {
	case "png":
		err = checkPNG(r)
	case "gif":
		err = checkGIF(r)
	case "jpeg":
		var scans int
		if scans, err = countScans(r); err == nil {
			m.scanned += scans * pixels
		}
		if m.scanned > maxScanned {
			return tooMuch(param, "The JPEG files of a request may have at most %d megapixels, counted once for each scan.", maxScanned/1_000_000)
		}
	}
	if err != nil {
		return api.New(api.InvalidType, "A PNG, JPEG or GIF file is damaged, or holds more data than its size needs.").With(param)
	}
	return nil
}

// sound checks a sound in base64.
func (m *media) sound(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	return m.soundFile(param, &base64Reader{text: text}, base64.StdEncoding.DecodedLen(encoded), false)
}

// soundFile checks a sound of size bytes. With others, as in uploads, Ogg files
// are accepted as well, and MP3 files and those in formats that are not known
// here may be as large as sounds may be.
func (m *media) soundFile(param string, r io.Reader, size int, others bool) *api.Error {
	m.sounds++
	m.soundBytes += size
	if m.sounds > maxSounds {
		return tooMuch(param, "A request may hold at most %d sounds.", maxSounds)
	}
	if m.soundBytes > maxSoundBytes {
		return tooMuch(param, "The sounds of a request may have at most %d bytes.", maxSoundBytes)
	}
	var refused *api.Error
	frames := m.mp3Frames(param, size, &refused)
	b := bufio.NewReaderSize(io.TeeReader(r, frames), 16<<10)
	if e := m.soundHead(param, b, size, others); e != nil {
		return e
	}
	// What one decoder refuses, engines try as MP3, and that decoder takes its frames from anywhere.
	if _, err := io.Copy(io.Discard, b); ignoreEnd(err) != nil {
		return damagedSound(param, "sound")
	}
	frames.look(true)
	return refused
}

// soundHead checks a sound by its format.
func (m *media) soundHead(param string, b *bufio.Reader, size int, others bool) *api.Error {
	tagged, ok := skipTags(b)
	if !ok {
		return damagedSound(param, "MP3")
	}
	head, _ := b.Peek(42)
	is := func(form string) bool { return bytes.HasPrefix(head, []byte(form)) }
	switch {
	case is("RIFF") && len(head) >= 12 && string(head[8:12]) == "WAVE" && !tagged:
		return m.wav(param, b, size)
	case is("fLaC") && len(head) == 42:
		return m.flac(param, head, size)
	case is("OggS") && others:
		return m.ogg(param, b, size)
	case is("fLaC"), is("OggS"):
	case others && (is("RIFX") || is("RF64") || is("riff") || is("FORM")): // relatives of WAV, with lengths in other places
		return api.New(api.InvalidType, "AIFF, RF64, W64 and RIFX files are not accepted; send the sound as a WAV or FLAC file.").With(param)
	case others:
		return nil
	case tagged, len(head) >= 2 && head[0] == 0xFF && head[1]&0xE0 == 0xE0:
		if size > maxMP3Bytes {
			return tooMuch(param, "An MP3 file may have at most %d bytes.", maxMP3Bytes)
		}
		return nil
	}
	return api.New(api.InvalidType, "A sound must be a WAV, FLAC or MP3 file; this one is none or is damaged.").With(param)
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
	_, _ = io.ReadFull(&base64Reader{text: text}, head[:])
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

// ignoreEnd returns err, or nil where a file ends early: what is there has been checked.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
