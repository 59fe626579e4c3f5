package bodycheck

import (
	"bytes"
	"encoding/base64"
	"io"
	"slices"
)

// base64Reader reads the bytes that text holds in base64, with line ends or without. base64.NewDecoder looks at each letter for
// line ends, which takes as long as everything else that is done for a picture.
type base64Reader struct {
	text    io.Reader
	letters [8 << 10]byte
	have    int // letters
	decoded [6 << 10]byte
	bytes   []byte // of decoded, unread
	err     error
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

// fill reads and decodes the next letters; those that make no whole group of four are kept.
func (b *base64Reader) fill() {
	n, err := b.text.Read(b.letters[b.have:])
	added := b.letters[b.have : b.have+n]
	if bytes.IndexByte(added, '\n') >= 0 || bytes.IndexByte(added, '\r') >= 0 {
		n = len(slices.DeleteFunc(added, func(c byte) bool { return c == '\n' || c == '\r' }))
	}
	b.have += n
	groups := b.have / 4 * 4
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
