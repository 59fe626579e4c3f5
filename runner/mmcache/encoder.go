package mmcache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"strings"

	"reveille/runner/filestate"
)

// An Encoder describes what computes a model's encoder outputs on this host: its files, and how the engine runs.
type Encoder struct {
	Projector string   // path of the projector file
	Program   string   // path of the engine's program
	Argv      []string // of the engine, starting with the program
	Env       []string // of the engine, NAME=value
}

// A Digest is a SHA-256.
type Digest = [sha256.Size]byte

// digest returns the SHA-256 over the files' contents and everything else that affects the encoder's numbers.
func (e Encoder) digest(ctx context.Context, contents *filestate.Contents, files []filestate.File) (Digest, error) {
	h := sha256.New()
	for _, f := range files {
		sum, err := contents.Digest(ctx, f)
		if err != nil {
			return Digest{}, err
		}
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

// nonEncoderArgs lists the engine's arguments that do not reach its encoder, with the number of values that follow
// each. All others are part of an entry's identity, so that an unknown argument reduces sharing but never causes a
// wrong result.
var nonEncoderArgs = map[string]int{
	"--model": 1, "-m": 1, "--mmproj": 1, "-mm": 1, "--alias": 1, "-a": 1, "--host": 1, "--port": 1, "--ctx-size": 1, "-c": 1,
	"--batch-size": 1, "-b": 1, "--ubatch-size": 1, "-ub": 1, "--parallel": 1, "-np": 1, "--kv-unified": 0, "-kvu": 0,
	"--cache-type-k": 1, "-ctk": 1, "--cache-type-v": 1, "-ctv": 1, "--jinja": 0, "--embedding": 0, "--pooling": 1,
	"--slot-save-path": 1, "--gpu-layers": 1, "-ngl": 1,
}

// encoderArgs returns the arguments that can change what the encoder computes, in order.
func encoderArgs(argv []string) []string {
	var out []string
	for i := 1; i < len(argv); i++ {
		name, _, joined := strings.Cut(argv[i], "=")
		values, ok := nonEncoderArgs[name]
		switch {
		case !ok:
			out = append(out, argv[i])
		case !joined:
			i += values
		}
	}
	return out
}
