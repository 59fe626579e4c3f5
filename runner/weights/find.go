package weights

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"reveille/infra/catalog"
)

// MaxFiles bounds the files of one location; a source need not list more than one beyond it.
const MaxFiles = 1000

// found is the content of a location: the files of one model, and the path that the engine gets, "" for their folder.
type found struct {
	files []File
	path  string
}

// size is the bytes of all files whose size is known.
func (f found) size() (n int64) {
	for _, one := range f.files {
		n += max(one.Size, 0)
	}
	return n
}

// find lists the files of a location: the file itself; for a shard of a GGUF file, all shards; for a folder or a whole
// repository, the files in it that an engine needs.
func find(ctx context.Context, src Source, at Location) (found, error) {
	var out found
	if at.Path != "" {
		dir, name := path.Split(at.Path)
		names := catalog.Shards(name)
		for _, part := range names {
			c := at.Checkpoint
			c.Path = dir + part
			f, err := src.Stat(ctx, c)
			if len(names) == 1 && missing(err) {
				return folder(ctx, src, at, err)
			}
			if err != nil {
				return out, err
			}
			f.Name = part
			out.files = append(out.files, f)
		}
		out.path = names[0] // whichever is named: engines begin with the first
		return out, valid(at, out.files)
	}
	return folder(ctx, src, at, nil)
}

// missing reports whether a name may not exist. S3 denies access to missing keys without permission to list the
// bucket.
func missing(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrDenied) }

// folder is find for a folder; none is the error when there is none.
func folder(ctx context.Context, src Source, at Location, none error) (found, error) {
	files, err := src.List(ctx, at.Checkpoint)
	if none != nil && (missing(err) || err == nil && len(files) == 0) {
		return found{}, none
	}
	if err != nil {
		return found{}, err
	}
	out, err := needed(files)
	if err == nil {
		err = valid(at, out.files)
	}
	return out, err
}

// otherForms are the extensions of weights that a folder with safetensors repeats in other formats.
var otherForms = []string{".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".gguf"}

// needed filters a folder for the files that an engine needs: no hidden files and, beside safetensors, no weights in
// other formats. Of a folder with a single GGUF file it is that file.
func needed(files []File) (found, error) {
	ending := func(end string) func(File) bool {
		return func(f File) bool { return strings.HasSuffix(strings.ToLower(f.Name), end) }
	}
	files = slices.DeleteFunc(slices.Clone(files), func(f File) bool { return strings.HasPrefix(f.Name, ".") || strings.Contains(f.Name, "/.") })
	if slices.ContainsFunc(files, ending(".safetensors")) {
		for _, end := range otherForms {
			files = slices.DeleteFunc(files, ending(end))
		}
		return found{files: files}, nil
	}
	single := slices.IndexFunc(files, ending(".gguf"))
	if single < 0 {
		return found{files: files}, nil
	}
	var names []string
	for _, f := range files {
		if ending(".gguf")(f) {
			names = append(names, f.Name)
		}
	}
	if len(names) > 1 {
		return found{}, &Error{Kind: ErrUnclear, Note: fmt.Sprintf("name one of its %d GGUF files, such as %s", len(names), names[0])}
	}
	return found{files: files[single : single+1], path: names[0]}, nil
}

// valid refuses names that cannot be files below one folder of this host, and a checksum for more than one file.
func valid(at Location, files []File) error {
	unclear := func(format string, args ...any) error {
		return &Error{Kind: ErrUnclear, Note: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(files) == 0:
		return &Error{Kind: ErrNotFound, Note: "there is no file in it"}
	case len(files) > MaxFiles:
		return unclear("more than %d files", MaxFiles)
	case len(files) > 1 && at.SHA256 != "":
		return unclear("%d files, but one sha256", len(files))
	}
	for _, f := range files {
		long := func(part string) bool { return len(part) > 255 }
		if !filepath.IsLocal(f.Name) || f.Name == "." || path.Clean(f.Name) != f.Name ||
			strings.ContainsRune(f.Name, '\\') || strings.ContainsFunc(f.Name, unicode.IsControl) ||
			slices.ContainsFunc(strings.Split(f.Name, "/"), long) || f.Name == manifestName || f.Name == progressName {
			return unclear("%.300q can be no file here", f.Name)
		}
	}
	return nil
}
