package modelfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// walker reads past a header (version 2 or 3, little-endian). The first thing that is not right stays in reason, and
// from there on everything reads as zero.
type walker struct {
	r       *bufio.Reader
	size    uint64 // of the file
	at      uint64 // bytes read
	reason  string
	reading error // of the disk
	buf     [maxName]byte

	keep func(name string) bool // whose texts stay in kept, at most maxKept bytes of each; nil: nobody's
	kept []byte                 // the text of the last member, empty if it has none that is kept
}

func (w *walker) failed() bool { return w.reason != "" || w.reading != nil }

func (w *walker) fail(reason string) {
	if !w.failed() {
		w.reason = reason
	}
}

// advance reports whether the file has n more bytes, and counts them as read.
func (w *walker) advance(n uint64) bool {
	if n > w.size-w.at {
		w.fail("it is cut off in its header")
	}
	if w.failed() {
		return false
	}
	w.at += n
	return true
}

// setReadErr records the error of a read within the file.
func (w *walker) setReadErr(err error) {
	switch {
	case err == nil || w.failed():
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // it shrinks as it is read
		w.fail("it is cut off in its header")
	default:
		w.reading = err
	}
}

// bytes reads n bytes, at most len(buf); they are valid until the next read.
func (w *walker) bytes(n uint64) []byte {
	b := w.buf[:n]
	clear(b)
	if w.advance(n) {
		_, err := io.ReadFull(w.r, b)
		w.setReadErr(err)
	}
	return b
}

func (w *walker) u32() uint32 { return binary.LittleEndian.Uint32(w.bytes(4)) }
func (w *walker) u64() uint64 { return binary.LittleEndian.Uint64(w.bytes(8)) }

func (w *walker) skip(n uint64) {
	if w.advance(n) {
		_, err := w.r.Discard(int(n)) // the file has them, and every caller bounds n
		w.setReadErr(err)
	}
}

// text reads past a string of at most most bytes.
func (w *walker) text(most uint64) {
	n := w.u64()
	if n > most {
		w.fail("it holds a text that is longer than any model's")
		return
	}
	w.skip(n)
}

// maxKept is how many bytes of a text are kept.
const maxKept = 256 << 10

// keepText is text with the beginning of the string in kept.
func (w *walker) keepText() {
	n := w.u64()
	if n > maxText {
		w.fail("it holds a text that is longer than any model's")
		return
	}
	head := min(n, maxKept)
	if !w.advance(head) {
		return
	}
	w.kept = append(w.kept, make([]byte, head)...)
	if _, err := io.ReadFull(w.r, w.kept); err != nil {
		w.setReadErr(err)
	}
	w.skip(n - head)
}

func (w *walker) name() string {
	n := w.u64()
	if n > maxName {
		w.fail("it holds a name that is longer than any model's")
		return ""
	}
	return string(w.bytes(n))
}

// Kinds of value.
const (
	kindText  = 8
	kindArray = 9
)

// width is the size in bytes of a value of a kind, 0 for texts, arrays and unknown kinds.
func width(kind uint32) uint64 {
	widths := [...]uint64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}
	if int(kind) < len(widths) {
		return widths[kind]
	}
	return 0
}

// member reads past one name with its value, which is returned where it is a number.
func (w *walker) member() (name string, number uint64) {
	w.kept = w.kept[:0]
	name = w.name()
	switch kind := w.u32(); {
	case w.failed():
	case kind == kindText && w.keep != nil && w.keep(name):
		w.keepText()
	case kind == kindText:
		w.text(maxText)
	case kind == kindArray:
		w.array(name)
	case width(kind) == 0:
		w.fail("its metadata holds a value of an unknown kind")
	default:
		var b [8]byte
		copy(b[:], w.bytes(width(kind)))
		number = binary.LittleEndian.Uint64(b[:])
		if name == "split.tensors.count" && number > maxTensors {
			w.fail("it declares more tensors than any model has")
		}
	}
	return name, number
}

func (w *walker) array(name string) {
	kind, n := w.u32(), w.u64()
	most := uint64(maxTensors)
	if strings.HasPrefix(name, "tokenizer.") {
		most = maxArray
	}
	switch {
	case n > most:
		w.fail("its metadata holds a list that is longer than any model's")
	case w.failed():
	case kind == kindText:
		for ; n > 0 && !w.failed(); n-- {
			w.text(maxText)
		}
	case width(kind) == 0:
		w.fail("its metadata holds a list of an unknown kind")
	default:
		w.skip(n * width(kind))
	}
}
