// Package modelfile rejects model files that are damaged, truncated or hostile, before an engine, which parses
// it in C++, gets to see it.
//
// Of a GGUF file the whole header is walked: counts, lengths, and where each tensor lies, all bounded by what real
// models have and by the size of the file. Nothing is kept in memory but a read buffer, and the weights themselves are
// not read: whether they are the right ones is looked at when they are fetched. Files of other formats are taken as
// they are.
package modelfile

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	gguf "github.com/gpustack/gguf-parser-go"
)

// Error is an invalid model file.
type Error struct {
	Reason string // for people; it quotes nothing of the file
}

// Error gives the reason.
func (e *Error) Error() string { return e.Reason }

// Bounds of a header. Those of real models stay far below them.
const (
	maxTensors = 1 << 17
	maxKeys    = 1 << 12
	maxName    = 1 << 10 // bytes
	maxText    = 4 << 20 // bytes, such as a chat template
	maxArray   = 4 << 20 // elements, such as a vocabulary
	maxDims    = 8
	// maxElements of a tensor keep its size in bytes within 64 bits, whatever its type.
	maxElements = 1 << 52
	maxAlign    = 1 << 20
)

// Check reads the header of a file that is named .gguf or starts as one. What is wrong with it is an *Error; other
// errors are those of reading.
func Check(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	w := walker{r: bufio.NewReaderSize(f, 64<<10), size: uint64(info.Size())}
	named := strings.EqualFold(filepath.Ext(path), ".gguf")
	switch magic := string(w.bytes(4)); {
	case magic == "GGUF":
		w.header()
	case w.reading != nil || !named:
		return w.reading
	case magic == "vers": // ion https://git-lfs.github.com/spec/
		w.fail("it is a Git LFS pointer, not the file itself")
	default:
		w.fail("it does not start as a GGUF file")
	}
	switch {
	case w.reading != nil:
		return w.reading
	case w.reason == "":
		return nil
	}
	return &Error{Reason: w.reason}
}

// IsGGUF reports whether a file is named .gguf or starts as a GGUF file, like the blobs of Ollama's store.
func IsGGUF(path string) bool {
	if strings.EqualFold(filepath.Ext(path), ".gguf") {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && string(magic[:]) == "GGUF"
}

// header walks all that comes before the weights.
func (w *walker) header() {
	version, tensors, keys := w.u32(), w.u64(), w.u64()
	switch {
	case w.failed():
		return
	case version < 2 || version > 3:
		w.fail(fmt.Sprintf("GGUF version %d is not known", version))
	case tensors > maxTensors:
		w.fail("it declares more tensors than any model has")
	case keys > maxKeys:
		w.fail("it declares more metadata than any model has")
	}
	align := uint64(32)
	for i := uint64(0); i < keys && !w.failed(); i++ {
		if name, n := w.member(); name == "general.alignment" {
			align = n
		}
	}
	if align == 0 || align > maxAlign {
		w.fail("its alignment is none")
	}
	var end uint64 // of the tensor that ends last, from the first one's beginning
	for i := uint64(0); i < tensors && !w.failed(); i++ {
		end = max(end, w.tensor(i))
	}
	if w.failed() || end == 0 {
		return
	}
	if start := (w.at + align - 1) / align * align; start > w.size || end > w.size-start {
		w.fail(fmt.Sprintf("it is cut off: its tensors need %d bytes, and it has %d", start+end, w.size))
	}
}

// tensor reads the description of a tensor and returns where its bytes end, as far as its type is known.
func (w *walker) tensor(i uint64) (end uint64) {
	w.text(maxName)
	dims := w.u32()
	if dims > maxDims {
		w.fail(fmt.Sprintf("tensor %d has %d dimensions", i, dims))
	}
	elements := uint64(1)
	for d := uint32(0); d < dims && !w.failed(); d++ {
		n := w.u64()
		if n > 0 && elements > maxElements/n {
			w.fail(fmt.Sprintf("tensor %d is larger than any model", i))
			return 0
		}
		elements *= n
	}
	kind, offset := w.u32(), w.u64()
	if w.failed() {
		return 0
	}
	bytes := uint64(0)
	if t, known := gguf.GGMLType(kind).Trait(); known && t.BlockSize > 0 {
		bytes = (elements + t.BlockSize - 1) / t.BlockSize * t.TypeSize
	}
	if offset > w.size || bytes > w.size-offset {
		w.fail(fmt.Sprintf("it is cut off: tensor %d is beyond its end", i))
		return 0
	}
	return offset + bytes
}
