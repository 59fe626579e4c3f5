package bodycheck

import (
	"bytes"
	"encoding/base64"
	"image"
	_ "image/gif" // registers the format, as the next ones do
	_ "image/jpeg"
	_ "image/png"
	"io"
	"strings"

	_ "golang.org/x/image/bmp"
	_ "golang.org/x/image/webp"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Limits of the media of one request. Decoders of images allocate by the size that a header announces; of sounds, by
// their bytes.
const (
	maxImages     = 8          // and videos
	maxPixels     = 40_000_000 // of an image
	maxPixelsAll  = 64_000_000
	maxImageBytes = 20_000_000 // of all images and videos, decoded
	maxAudios     = 8
	maxAudioBytes = 25_000_000 // of all sounds, decoded
)

// media counts the media of one request.
type media struct {
	images, imageBytes, pixels int
	audios, audioBytes         int
	encoded                    int // bytes of base64
}

// addImage counts an image or video of so many bytes.
func (m *media) addImage(param string, size int) error {
	m.images++
	if m.imageBytes += size; m.images > maxImages || m.imageBytes > maxImageBytes {
		return api.Newf(api.InvalidType, "A request can contain at most %d images and videos, with %d bytes in total.", maxImages, maxImageBytes).WithParam(param)
	}
	return nil
}

// addAudio counts a sound of so many bytes.
func (m *media) addAudio(param string, size int) error {
	m.audios++
	if m.audioBytes += size; m.audios > maxAudios || m.audioBytes > maxAudioBytes {
		return api.Newf(api.InvalidType, "A request can contain at most %d audio clips, with %d bytes in total.", maxAudios, maxAudioBytes).WithParam(param)
	}
	return nil
}

// addPixels counts the pixels of an image, by its header.
func (m *media) addPixels(param string, r io.Reader) error {
	config, _, err := image.DecodeConfig(r)
	if err != nil || config.Width <= 0 || config.Height <= 0 {
		return api.New(api.InvalidType, "An image must be a valid PNG, JPEG, WebP, GIF or BMP file.").WithParam(param)
	}
	if config.Width > maxPixels/config.Height {
		return api.Newf(api.InvalidType, "An image can have at most %d megapixels.", maxPixels/1_000_000).WithParam(param)
	}
	if m.pixels += config.Width * config.Height; m.pixels > maxPixelsAll {
		return api.Newf(api.InvalidType, "The images of a request can have at most %d megapixels in total.", maxPixelsAll/1_000_000).WithParam(param)
	}
	return nil
}

// dataURLImage checks an image in a data: URL.
func (c *content) dataURLImage(v jsonscan.Value) error {
	text := plainText(v)
	head, data, isURL := cutDataURL(text)
	switch {
	case v.Kind != jsonscan.String:
		return c.refuse("An image must be a data: URL.")
	case !bytes.HasPrefix(text, []byte("data:")):
		return c.remote()
	case !isURL || !strings.HasPrefix(head, "data:image/"):
		return c.refuse("An image must be a data: URL such as data:image/png;base64,….")
	}
	return c.countImage(data)
}

// base64Image checks an image in base64 without a data: URL before it, which engines would not take off there.
func (c *content) base64Image(v jsonscan.Value) error {
	text := plainText(v)
	if v.Kind != jsonscan.String || bytes.IndexByte(text, ':') >= 0 {
		return c.refuse("An image is base64 here, without a data: URL before it.")
	}
	return c.countImage(text)
}

// countImage checks an image in base64.
func (c *content) countImage(data []byte) error {
	c.media.encoded += len(data)
	if err := c.media.addImage(c.param, base64.StdEncoding.DecodedLen(len(data))); err != nil {
		return err
	}
	return c.media.addPixels(c.param, base64.NewDecoder(base64.StdEncoding, bytes.NewReader(data)))
}

// video checks a video in base64, which may have a data: URL before it.
func (c *content) video(v jsonscan.Value) error { return c.countMedia(v, c.media.addImage) }

// audio checks a sound in base64, which may have a data: URL before it.
func (c *content) audio(v jsonscan.Value) error { return c.countMedia(v, c.media.addAudio) }

func (c *content) countMedia(v jsonscan.Value, add func(param string, size int) error) error {
	text := plainText(v)
	if _, data, isURL := cutDataURL(text); isURL {
		text = data
	}
	if v.Kind != jsonscan.String || bytes.IndexByte(text, ':') >= 0 {
		return c.refuse("Media must be base64; URLs are not fetched.")
	}
	c.media.encoded += len(text)
	return add(c.param, base64.StdEncoding.DecodedLen(len(text)))
}

// cutDataURL cuts a data: URL of base64 at its comma.
func cutDataURL(text []byte) (head string, data []byte, ok bool) {
	const maxHead = 100
	comma := bytes.IndexByte(text[:min(len(text), maxHead)], ',')
	if comma < 0 {
		return "", nil, false
	}
	head = string(text[:comma])
	return head, text[comma+1:], strings.HasPrefix(head, "data:") && strings.HasSuffix(head, ";base64")
}

// plainText returns the text of a string, which it can be called for once. One with escapes it rewrites in the body
// without them and without line ends: engines read base64 up to the first one, while clients wrap it and escape its
// slashes.
func plainText(v jsonscan.Value) []byte {
	text := v.Bytes()
	if bytes.IndexByte(v.Raw, '\\') < 0 {
		return text
	}
	text = bytes.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return -1
		}
		return r
	}, text)
	isSpecial := func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }
	if len(text) > len(v.Raw)-2 || bytes.ContainsFunc(text, isSpecial) {
		return text
	}
	n := 1 + copy(v.Raw[1:], text)
	overwrite(v.Raw[n:], []byte{'"'})
	return text
}
