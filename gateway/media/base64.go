package media

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"

	"reveille/gateway/api"
)

// errLineEnd: engines stop reading base64 at a line end, so they would not see the rest.
var errLineEnd = errors.New("a line end in base64")

// base64Reader decodes base64 without line ends. base64.NewDecoder skips line ends and looks at each letter for it, which takes
// as long as the rest of a picture's check.
type base64Reader struct {
	text    io.Reader
	letters [8 << 10]byte
	have    int  // letters
	padded  bool // the last one decoded was padding, so there are no more
	decoded [6 << 10]byte
	bytes   []byte // of decoded, unread
	err     error
}

// cause returns e, the error of a check that read from b, or the error for a line end if b stopped at one. nil stays nil.
func (b *base64Reader) cause(param string, e *api.Error) *api.Error {
	if e != nil && b.err == errLineEnd {
		return api.New(api.InvalidType, "Base64 must have no line ends here: engines read it to the first one.").WithParam(param)
	}
	return e
}

func (b *base64Reader) Read(p []byte) (int, error) {
	for len(b.bytes) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.fill()
	}
	n := copy(p, b.bytes)
	b.bytes = b.bytes[n:]
	return n, nil
}

// fill reads and decodes the next letters and keeps an incomplete group of four.
func (b *base64Reader) fill() {
	n, err := b.text.Read(b.letters[b.have:])
	added := b.letters[b.have : b.have+n]
	if bytes.IndexByte(added, '\n') >= 0 || bytes.IndexByte(added, '\r') >= 0 {
		b.err = errLineEnd
		return
	}
	b.have += n
	groups := b.have / 4 * 4
	if b.padded && b.have > 0 {
		b.err = base64.CorruptInputError(0)
		return
	}
	if groups > 0 {
		b.padded = b.letters[groups-1] == '='
	}
	m, err2 := base64.StdEncoding.Decode(b.decoded[:], b.letters[:groups])
	b.bytes = b.decoded[:m]
	b.have = copy(b.letters[:], b.letters[groups:b.have])
	switch {
	case err2 != nil:
		b.err = err2
	case err == io.EOF && b.have > 0:
		b.err = io.ErrUnexpectedEOF
	default:
		b.err = err
	}
}
