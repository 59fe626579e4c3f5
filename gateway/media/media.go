// Package media checks the pictures, sounds and videos of a request: their formats, what their headers announce, and the work
// that a decoder would have with them. It reads files as they stand in a body and decodes no pixels or samples.
package media

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

	_ "golang.org/x/image/bmp"
	_ "golang.org/x/image/webp"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Limits of the media of one request.
const (
	MaxPictures       = 8          // and videos
	MaxPixels         = 40_000_000 // of a picture
	maxAspect         = 200        // of a picture's longer side to the shorter: encoders that keep the ratio make ever more patches of it
	maxPixelsAll      = 64_000_000 // of all pictures
	maxScanned        = 20 * maxPixelsAll
	maxPictureBytes   = 20_000_000 // of all pictures and videos, decoded
	maxSounds         = 8
	maxSoundBytes     = 25_000_000 // of all sounds, decoded
	maxSoundSeconds   = 2 * 3600   // of all sounds of a form
	maxMessageSeconds = 1800       // of all sounds of messages, which engines decode whole
)

// headBytes is how much of a file is read for its dimensions. In a JPEG, a preview and a colour profile may come first.
const headBytes = 1 << 20

// Check checks the media of one request against the limits of a request. The zero value is ready for use; its errors are for the
// client, who named them param.
type Check struct {
	pictures     tally // and videos, which cost an engine the same
	pixels       int
	scanned      int // pixels, counted once for each scan of a progressive file
	sounds       tally
	soundSeconds int
}

// Files returns how many files were checked.
func (c *Check) Files() int { return c.pictures.files + c.sounds.files }

// Bytes returns their size, decoded.
func (c *Check) Bytes() int { return c.pictures.bytes + c.sounds.bytes }

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

// Picture checks a picture in about encoded bytes of base64: its format must be known and the dimensions in its header within
// bounds.
func (c *Check) Picture(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	r := &base64Reader{text: text}
	return r.cause(param, c.PictureFile(param, r, base64.StdEncoding.DecodedLen(encoded)))
}

// PictureFile is Picture for a file of size bytes.
func (c *Check) PictureFile(param string, r io.Reader, size int) *api.Error {
	if e := c.pictures.add(param, "pictures", size, MaxPictures, maxPictureBytes); e != nil {
		return e
	}
	var seen bytes.Buffer
	config, form, err := image.DecodeConfig(io.TeeReader(io.LimitReader(r, headBytes), &seen))
	if err != nil || config.Width <= 0 || config.Height <= 0 {
		return api.New(api.InvalidType, "A picture must be a PNG, JPEG, WebP, GIF or BMP file; this one is none or is damaged.").WithParam(param)
	}
	if config.Width > MaxPixels || config.Height > MaxPixels || config.Width*config.Height > MaxPixels {
		return tooMuch(param, "A picture may have at most %d megapixels.", MaxPixels/1_000_000)
	}
	if long, short := max(config.Width, config.Height), min(config.Width, config.Height); long > maxAspect*short {
		return tooMuch(param, "A picture's longer side may be at most %d times the shorter.", maxAspect)
	}
	pixels := config.Width * config.Height
	if config.ColorModel == color.NRGBA64Model || config.ColorModel == color.RGBA64Model || config.ColorModel == color.Gray16Model {
		if pixels *= 2; pixels > MaxPixels { // 16 bits for each sample
			return tooMuch(param, "A picture of 16 bits may have at most %d megapixels.", MaxPixels/2_000_000)
		}
	}
	if c.pixels += pixels; c.pixels > maxPixelsAll {
		return tooMuch(param, "The pictures of a request may have at most %d megapixels together.", maxPixelsAll/1_000_000)
	}
	return c.content(param, form, config.Width*config.Height, bufio.NewReaderSize(io.MultiReader(&seen, r), 16<<10))
}

// content checks what a decoder would do with a file of a form, beyond the work for its pixels. BMP and WebP files are not
// read: they have one picture, without passes.
func (c *Check) content(param, form string, pixels int, r *bufio.Reader) *api.Error {
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
			c.scanned += scans * pixels
		}
		if progressive && 2*pixels > MaxPixels {
			return tooMuch(param, "A progressive JPEG file may have at most %d megapixels.", MaxPixels/2_000_000)
		}
		if c.scanned > maxScanned {
			return tooMuch(param, "The JPEG files of a request may have at most %d megapixels, counted once for each scan.", maxScanned/1_000_000)
		}
	}
	if err != nil {
		return api.New(api.InvalidType, "A PNG, JPEG or GIF file is damaged, or holds more data than its size needs.").WithParam(param)
	}
	return nil
}

// Sound checks a sound in base64: a WAV or an MP3 file, the formats of OpenAI's API. It refuses files that a decoder
// could reject as the one format and then decode as another.
func (c *Check) Sound(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	r := &base64Reader{text: text}
	return r.cause(param, c.soundFile(param, r, base64.StdEncoding.DecodedLen(encoded)))
}

// soundFile is Sound for a file of size bytes.
func (c *Check) soundFile(param string, r io.Reader, size int) *api.Error {
	if e := c.countSound(param, size); e != nil {
		return e
	}
	b := bufio.NewReaderSize(r, 16<<10)
	head, err := b.Peek(12)
	switch {
	case err == nil && string(head[:4]) == "RIFF" && string(head[8:]) == "WAVE":
		return c.wav(param, b, size, maxMessageSeconds)
	case err == nil && (string(head[:3]) == "ID3" || head[0] == 0xFF && head[1]&0xE0 == 0xE0):
		if tagged, ok := skipTags(b); !ok || tagged && isSound(b) {
			return damagedSound(param, "MP3")
		}
		return c.mp3(param, b, size, maxMessageSeconds)
	}
	return api.New(api.InvalidType, "A sound must be a WAV or MP3 file; this one is neither or is damaged.").WithParam(param)
}

// isSound reports whether a file of another format than MP3 begins here, as after tags that its decoder skips too.
func isSound(b *bufio.Reader) bool {
	head, _ := b.Peek(4)
	return slices.Contains([]string{"RIFF", "RIFX", "RF64", "riff", "FORM", "fLaC", "OggS"}, string(head))
}

// Upload checks a sound in a form. Engines read more formats there; those unknown here are bounded only by their
// bytes.
func (c *Check) Upload(param string, r io.Reader, size int) *api.Error {
	if e := c.countSound(param, size); e != nil {
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
		return c.wav(param, b, size, maxSoundSeconds)
	case tagged && is("RIFF"), is("RIFX"), is("RF64"), is("riff"), is("FORM"): // WAV's relatives, with lengths in other places
		return api.New(api.InvalidType, "AIFF, RF64, W64 and RIFX files are not accepted; send the sound as a WAV or FLAC file.").WithParam(param)
	case is("fLaC"):
		if len(head) < 42 {
			return damagedSound(param, "FLAC")
		}
		if e := c.flac(param, head, size); e != nil {
			return e
		}
	case is("OggS"):
		return c.ogg(param, b, size)
	}
	return c.mp3(param, b, size, maxSoundSeconds) // decoders find frames in any data
}

func (c *Check) countSound(param string, size int) *api.Error {
	return c.sounds.add(param, "sounds", size, maxSounds, maxSoundBytes)
}

// Video checks the container and the size of a video in base64.
func (c *Check) Video(param string, text *jsonscan.TextReader, encoded int) *api.Error {
	if e := c.pictures.add(param, "pictures and videos", base64.StdEncoding.DecodedLen(encoded), MaxPictures, maxPictureBytes); e != nil {
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
	return api.New(api.InvalidType, "A video must be an MP4, WebM, Matroska or AVI file; this one is none or is damaged.").WithParam(param)
}

func tooMuch(param, message string, limit int) *api.Error {
	return api.Newf(api.InvalidType, message, limit).WithParam(param)
}

// ignoreEnd returns err, or nil if a file ends early: its content so far has been checked.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
