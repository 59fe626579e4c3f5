package bodycheck

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"image"
	"image/color"
	_ "image/gif" // registers the format, as the next ones do
	_ "image/jpeg"
	_ "image/png"
	"io"
	"slices"
	"strconv"

	_ "golang.org/x/image/bmp"
	_ "golang.org/x/image/webp"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Limits of the media of one request.
const (
	maxPictures       = 8
	maxPixels         = 40_000_000 // of a picture
	maxAspect         = 200        // of a picture's longer side to the shorter: encoders that keep the ratio make ever more patches of it
	maxPixelsAll      = 64_000_000 // of all pictures
	maxScanned        = 20 * maxPixelsAll
	maxPictureBytes   = 20_000_000 // of all pictures and videos, decoded
	maxSounds         = 8
	maxSoundBytes     = 25_000_000 // of all sounds, decoded
	maxSoundSeconds   = 2 * 3600   // of all sounds of a form
	maxMessageSeconds = 1800       // of all sounds of messages, which engines hold whole as numbers
)

// headBytes is how much of a file is read for its dimensions. A JPEG may have
// a preview and a colour profile before them.
const headBytes = 1 << 20

// media counts the media of a request.
type media struct {
	pictures     tally // and videos, which cost an engine as much
	pixels       int
	scanned      int // pixels, once for each scan of a progressive file
	sounds       tally
	soundSeconds int
}

// files is how many files there were.
func (m *media) files() int { return m.pictures.files + m.sounds.files }

// tally counts files of one sort.
type tally struct{ files, bytes int }

// add counts a file of size bytes and checks that there are at most files and bytes of what the sort is called.
func (t *tally) add(param, what string, size, files, bytes int) *api.Error {
	t.files++
	t.bytes += size
	if t.files > files {
		return tooMuch(param, "A request may hold at most %d "+what+".", files)
	}
	if t.bytes > bytes {
		return tooMuch(param, "The "+what+" of a request may have at most %d bytes.", bytes)
	}
	return nil
}

// picture checks a picture in base64 of about encoded bytes: its format is
// known and its dimensions, which its header tells, are within bounds.
func (m *media) picture(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	r := &base64Reader{text: text}
	return r.cause(param, m.pictureFile(param, r, base64.StdEncoding.DecodedLen(encoded)))
}

// pictureFile is picture for a file of size bytes.
func (m *media) pictureFile(param string, r io.Reader, size int) *api.Error {
	if e := m.pictures.add(param, "pictures", size, maxPictures, maxPictureBytes); e != nil {
		return e
	}
	var seen bytes.Buffer
	c, form, err := image.DecodeConfig(io.TeeReader(io.LimitReader(r, headBytes), &seen))
	if err != nil || c.Width <= 0 || c.Height <= 0 {
		return api.New(api.InvalidType, "A picture must be a PNG, JPEG, WebP, GIF or BMP file; this one is none or is damaged.").With(param)
	}
	if c.Width > maxPixels || c.Height > maxPixels || c.Width*c.Height > maxPixels {
		return tooMuch(param, "A picture may have at most %d megapixels.", maxPixels/1_000_000)
	}
	if long, short := max(c.Width, c.Height), min(c.Width, c.Height); long > maxAspect*short {
		return tooMuch(param, "A picture's longer side may be at most %d times the shorter.", maxAspect)
	}
	pixels := c.Width * c.Height
	if c.ColorModel == color.NRGBA64Model || c.ColorModel == color.RGBA64Model || c.ColorModel == color.Gray16Model {
		if pixels *= 2; pixels > maxPixels { // 16 bits for each sample
			return tooMuch(param, "A picture of 16 bits may have at most %d megapixels.", maxPixels/2_000_000)
		}
	}
	if m.pixels += pixels; m.pixels > maxPixelsAll {
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
		var progressive bool
		if scans, progressive, err = countScans(r); err == nil {
			m.scanned += scans * pixels
		}
		if progressive && 2*pixels > maxPixels {
			return tooMuch(param, "A progressive JPEG file may have at most %d megapixels.", maxPixels/2_000_000)
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

// sound checks a sound in base64: a WAV or an MP3 file, the formats of OpenAI's API. Nothing that a decoder could refuse as
// the one and then read as something else is accepted.
func (m *media) sound(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	r := &base64Reader{text: text}
	return r.cause(param, m.soundFile(param, r, base64.StdEncoding.DecodedLen(encoded)))
}

// soundFile is sound for a file of size bytes.
func (m *media) soundFile(param string, r io.Reader, size int) *api.Error {
	if e := m.countSound(param, size); e != nil {
		return e
	}
	b := bufio.NewReaderSize(r, 16<<10)
	head, err := b.Peek(12)
	switch {
	case err == nil && string(head[:4]) == "RIFF" && string(head[8:]) == "WAVE":
		return m.wav(param, b, size, maxMessageSeconds)
	case err == nil && (string(head[:3]) == "ID3" || head[0] == 0xFF && head[1]&0xE0 == 0xE0):
		if tagged, ok := skipTags(b); !ok || tagged && isSound(b) {
			return damagedSound(param, "MP3")
		}
		return m.mp3(param, b, size, maxMessageSeconds)
	}
	return api.New(api.InvalidType, "A sound must be a WAV or MP3 file; this one is neither or is damaged.").With(param)
}

// isSound reports whether a file of another format than MP3 begins, as behind tags that its decoder skips as well.
func isSound(b *bufio.Reader) bool {
	head, _ := b.Peek(4)
	return slices.Contains([]string{"RIFF", "RIFX", "RF64", "riff", "FORM", "fLaC", "OggS"}, string(head))
}

// upload checks a sound in a form. Engines read more formats there; those that are not known here are bounded by their bytes
// alone.
func (m *media) upload(param string, r io.Reader, size int) *api.Error {
	if e := m.countSound(param, size); e != nil {
		return e
	}
	b := bufio.NewReaderSize(r, 16<<10)
	tagged, ok := skipTags(b)
	if !ok {
		return damagedSound(param, "MP3")
	}
	head, _ := b.Peek(42)
	is := func(form string) bool { return bytes.HasPrefix(head, []byte(form)) }
	switch {
	case is("RIFF") && len(head) >= 12 && string(head[8:12]) == "WAVE" && !tagged:
		return m.wav(param, b, size, maxSoundSeconds)
	case tagged && is("RIFF"), is("RIFX"), is("RF64"), is("riff"), is("FORM"): // WAV's relatives, with lengths in other places
		return api.New(api.InvalidType, "AIFF, RF64, W64 and RIFX files are not accepted; send the sound as a WAV or FLAC file.").With(param)
	case is("fLaC"):
		if len(head) < 42 {
			return damagedSound(param, "FLAC")
		}
		if e := m.flac(param, head, size); e != nil {
			return e
		}
	case is("OggS"):
		return m.ogg(param, b, size)
	}
	return m.mp3(param, b, size, maxSoundSeconds) // decoders take frames from anything
}

func (m *media) countSound(param string, size int) *api.Error {
	return m.sounds.add(param, "sounds", size, maxSounds, maxSoundBytes)
}

// film checks a video in base64: its container and its size.
func (m *media) film(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	if e := m.pictures.add(param, "pictures and videos", base64.StdEncoding.DecodedLen(encoded), maxPictures, maxPictureBytes); e != nil {
		return e
	}
	var head [12]byte
	_, _ = io.ReadFull(&base64Reader{text: text}, head[:])
	switch {
	// A box of that size alone: llama-server first tries all that it reads as a picture, and formats without a mark at their
	// beginning would hold sizes that nobody has checked.
	case string(head[:3]) == "\x00\x00\x00" && string(head[4:8]) == "ftyp", bytes.HasPrefix(head[:], []byte{0x1A, 0x45, 0xDF, 0xA3}), string(head[:4]) == "RIFF" && string(head[8:]) == "AVI ":
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
