package mmcache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"reveille/runner/filestate"
)

// An Encoder describes what computes a model's encoder outputs on this host: its files, and how the engine is run.
type Encoder struct {
	Projector string   // path of the projector file
	Program   string   // path of the engine's program
	Argv      []string // of the engine, starting with the program
	Env       []string // of the engine, NAME=value
}

// Digest is the part of an entry's identity that says which encoder computed it.
type Digest = [sha256.Size]byte

// encoderFile is one file that an encoder's output depends on.
type encoderFile struct {
	label, path string
	state       filestate.State
}

// files lists the encoder's files: the projector with all parts of a split one, the engine's program and its own
// libraries. System libraries and drivers are not included.
func (e Encoder) files() ([]encoderFile, error) {
	var out []encoderFile
	add := func(label, path string) error {
		state, err := filestate.Settled(path)
		if err != nil {
			return err
		}
		out = append(out, encoderFile{label, path, state})
		return nil
	}
	parts, err := filestate.Parts(e.Projector)
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		if err := add("projector "+strconv.Itoa(i), p); err != nil {
			return nil, err
		}
	}
	program, err := filepath.EvalSymlinks(e.Program)
	if err != nil {
		return nil, err
	}
	if err := add("program", program); err != nil {
		return nil, err
	}
	for _, lib := range filestate.Libraries(program, e.Env) {
		if err := add("library "+filepath.Base(lib), lib); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unchanged reports whether all files are still in their recorded state.
func unchanged(files []encoderFile) bool {
	return !slices.ContainsFunc(files, func(f encoderFile) bool { return !f.state.Is(f.path) })
}

// digest returns the SHA-256 over the files' contents and everything else that affects the encoder's numbers.
func (e Encoder) digest(ctx context.Context, d *digests, files []encoderFile) (Digest, error) {
	h := sha256.New()
	for _, f := range files {
		sum, err := d.of(ctx, f)
		if err != nil {
			return Digest{}, err
		}
		writePart(h, 1, []byte(f.label))
		writePart(h, 2, sum[:])
	}
	for _, a := range encoderArgs(e.Argv) {
		writePart(h, 3, []byte(a))
	}
	for _, kv := range e.Env {
		if slices.ContainsFunc([]string{"GGML_", "MTMD_", "LLAMA_ARG_", "HSA_OVERRIDE_"}, func(p string) bool { return strings.HasPrefix(kv, p) }) {
			writePart(h, 4, []byte(kv))
		}
	}
	return Digest(h.Sum(nil)), nil
}

// writePart writes a tagged, length-prefixed part, so that different lists of parts never produce the same bytes.
func writePart(h hash.Hash, tag byte, data []byte) {
	var p [9]byte
	p[0] = tag
	binary.LittleEndian.PutUint64(p[1:], uint64(len(data)))
	_, _ = h.Write(p[:])
	_, _ = h.Write(data)
}

// textOnly lists the engine's arguments that do not reach its encoder, with the number of values that follow each. All
// others are part of an entry's identity, so that an unknown argument reduces sharing but never causes a wrong answer.
var textOnly = map[string]int{
	"--model": 1, "-m": 1, "--mmproj": 1, "-mm": 1, "--alias": 1, "-a": 1, "--host": 1, "--port": 1, "--ctx-size": 1, "-c": 1,
	"--batch-size": 1, "-b": 1, "--ubatch-size": 1, "-ub": 1, "--parallel": 1, "-np": 1, "--kv-unified": 0, "-kvu": 0,
	"--cache-type-k": 1, "-ctk": 1, "--cache-type-v": 1, "-ctv": 1, "--jinja": 0, "--embedding": 0, "--pooling": 1,
	"--slot-save-path": 1, "--gpu-layers": 1, "-ngl": 1,
}

// encoderArgs returns the arguments that may change what the encoder computes, in order.
func encoderArgs(argv []string) []string {
	var out []string
	for i := 1; i < len(argv); i++ {
		name, _, joined := strings.Cut(argv[i], "=")
		values, ok := textOnly[name]
		switch {
		case !ok:
			out = append(out, argv[i])
		case !joined:
			i += values
		}
	}
	return out
}

// digests caches the digests of files by path and state. It is safe for concurrent use.
type digests struct {
	mu sync.Mutex
	m  map[string]fileDigest
}

type fileDigest struct {
	state filestate.State
	sum   Digest
}

const (
	maxDigests  = 1024
	digestChunk = 1 << 20
)

// of returns the SHA-256 of a file's content. It fails unless the file stays in state f while it is read.
func (d *digests) of(ctx context.Context, f encoderFile) (Digest, error) {
	d.mu.Lock()
	known, ok := d.m[f.path]
	d.mu.Unlock()
	if ok && known.state == f.state {
		return known.sum, nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return Digest{}, err
	}
	defer func() { _ = file.Close() }()
	h := sha256.New()
	buf := make([]byte, digestChunk)
	for err == nil && ctx.Err() == nil {
		var n int
		n, err = file.Read(buf)
		_, _ = h.Write(buf[:n])
	}
	if ctx.Err() != nil {
		return Digest{}, ctx.Err()
	}
	if err != io.EOF {
		return Digest{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return Digest{}, err
	}
	if s, err := filestate.Of(info); err != nil || s != f.state {
		return Digest{}, fmt.Errorf("%s changed", f.path)
	}
	sum := Digest(h.Sum(nil))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil || len(d.m) >= maxDigests {
		d.m = map[string]fileDigest{}
	}
	d.m[f.path] = fileDigest{f.state, sum}
	return sum, nil
}
