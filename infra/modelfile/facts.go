package modelfile

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
)

// maxContext bounds the context that is believed of a model, in tokens.
const maxContext = 1 << 31

// Facts is what a GGUF file's metadata says of its model. What it does not say is zero.
type Facts struct {
	Context      int64  // longest sequence that the model was trained for, in tokens
	Architecture string // such as "llama": letters, digits and . _ -
	Tools        bool   // its chat template has a place for tools
}

var errFacts = errors.New("the GGUF header is invalid or names no context")

// Read reads the facts of a GGUF file. Of the file no more is read than the metadata, within the bounds of Check, and
// nothing is mapped: the file may change meanwhile. With an error, the facts that come before the mistake are returned.
func Read(path string) (Facts, error) {
	f, err := os.Open(path)
	if err != nil {
		return Facts{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return Facts{}, errors.Join(err, errFacts)
	}
	w := walker{r: bufio.NewReaderSize(f, 64<<10), size: uint64(info.Size())}
	if string(w.bytes(4)) != "GGUF" {
		return Facts{}, errFacts
	}
	version, _, keys := w.u32(), w.u64(), w.u64()
	if version < 2 || version > 3 || keys > maxKeys {
		return Facts{}, errFacts
	}
	var out Facts
	w.keep = func(name string) bool {
		return name == "general.architecture" || strings.HasPrefix(name, "tokenizer.chat_template")
	}
	for ; keys > 0 && !w.failed(); keys-- {
		name, n := w.member()
		_, key, _ := strings.Cut(name, ".")
		switch {
		case w.failed():
		case key == "context_length" && n > 0 && n <= maxContext && out.Context == 0: // of the architecture: bert.context_length
			out.Context = int64(n)
		case name == "general.architecture" && architecture.Match(w.kept):
			out.Architecture = string(w.kept)
		case strings.HasPrefix(name, "tokenizer.chat_template"):
			out.Tools = out.Tools || bytes.Contains(w.kept, []byte("tools"))
		}
	}
	if out.Context == 0 {
		return out, errFacts
	}
	return out, nil
}

// architecture is a name that is believed.
var architecture = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
