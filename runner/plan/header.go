package plan

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
)

// Bounds of a header. Those of real models stay far below them.
const (
	maxTensors = 1 << 17
	maxKeys    = 1 << 12
	maxKey     = 1 << 10 // bytes of a name
	maxString  = 4 << 20 // bytes of a text, such as a chat template
	maxArray   = 4 << 20 // elements, such as a vocabulary
	maxHeader  = 512 << 20
)

var errHeader = errors.New("not a GGUF header within the usual bounds")

// checkHeader walks the metadata of a GGUF file (version 2 or 3, little-endian) and refuses lengths that no model has.
// It holds nothing in memory but a read buffer.
func checkHeader(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(errHeader, err)
	}
	w := walker{r: bufio.NewReaderSize(io.LimitReader(f, maxHeader), 64<<10)}
	var magic [4]byte
	if _, err := io.ReadFull(w.r, magic[:]); err != nil || string(magic[:]) != "GGUF" {
		return errHeader
	}
	version, tensors, keys := w.u32(), w.u64(), w.u64()
	if w.bad || version < 2 || version > 3 || tensors > maxTensors || keys > maxKeys {
		return errHeader
	}
	for range keys {
		w.member()
		if w.bad {
			return errHeader
		}
	}
	return nil
}

// walker reads past metadata. bad is set, and stays, at the first thing that is not right.
type walker struct {
	r   *bufio.Reader
	bad bool
	buf [8]byte
}

func (w *walker) number(bytes int) uint64 {
	clear(w.buf[:])
	if _, err := io.ReadFull(w.r, w.buf[:bytes]); err != nil {
		w.bad = true
	}
	return binary.LittleEndian.Uint64(w.buf[:])
}

func (w *walker) u32() uint32 { return uint32(w.number(4)) }
func (w *walker) u64() uint64 { return w.number(8) }

func (w *walker) skip(n uint64) {
	if _, err := w.r.Discard(int(n)); err != nil { // n is bounded by every caller
		w.bad = true
	}
}

// text reads past a string of at most most bytes.
func (w *walker) text(most uint64) {
	n := w.u64()
	if w.bad = w.bad || n > most; !w.bad {
		w.skip(n)
	}
}

func (w *walker) name() string {
	n := w.u64()
	if w.bad = w.bad || n > maxKey; w.bad {
		return ""
	}
	b := make([]byte, n)
	_, err := io.ReadFull(w.r, b)
	w.bad = err != nil
	return string(b)
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

// member reads past one name with its value.
func (w *walker) member() {
	name, kind := w.name(), w.u32()
	switch {
	case w.bad:
	case kind == kindText:
		w.text(maxString)
	case kind == kindArray:
		w.array(name)
	case width(kind) == 0:
		w.bad = true
	default:
		if n := w.number(int(width(kind))); name == "split.tensors.count" && n > maxTensors {
			w.bad = true
		}
	}
}

func (w *walker) array(name string) {
	kind, n := w.u32(), w.u64()
	most := uint64(maxArray)
	if !strings.HasPrefix(name, "tokenizer.") {
		most = maxTensors
	}
	switch {
	case w.bad || n > most:
		w.bad = true
	case kind == kindText:
		for ; n > 0 && !w.bad; n-- {
			w.text(maxString)
		}
	case width(kind) == 0:
		w.bad = true
	default:
		w.skip(n * width(kind))
	}
}
