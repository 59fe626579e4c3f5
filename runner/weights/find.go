package weights

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"

	"reveille/infra/catalog"
)

// MaxFiles limits the files of one location. A source can stop listing after one more.
const MaxFiles = 1000

// found is the content of a location: the files of one model, and the path that the engine gets, "" for their folder.
type found struct {
	files []File
	path  string
}

// size returns the bytes of all files whose size is known.
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
			if len(names) == 1 && isMissing(err) {
				return findFolder(ctx, src, at, err)
			}
			if err != nil {
				return out, err
			}
			f.Name = part
			out.files = append(out.files, f)
		}
		out.path = names[0] // whichever shard is named: engines start with the first
		return out, checkFiles(at, out.files)
	}
	return findFolder(ctx, src, at, nil)
}

// isMissing reports whether an error can mean that a name does not exist. S3 denies access to missing keys without
// permission to list the bucket.
func isMissing(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrDenied) }

// findFolder is find for a folder. It returns notFound if the folder does not exist.
func findFolder(ctx context.Context, src Source, at Location, notFound error) (found, error) {
	files, err := src.List(ctx, at.Checkpoint)
	if notFound != nil && (isMissing(err) || err == nil && len(files) == 0) {
		return found{}, notFound
	}
	if err != nil {
		return found{}, err
	}
	out, err := neededFiles(files)
	if err == nil {
		err = checkFiles(at, out.files)
	}
	return out, err
}

// otherFormats are the extensions of weights that a folder with safetensors repeats in other formats.
var otherFormats = []string{".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".gguf"}

// neededFiles returns the files of a folder that an engine needs: no hidden files, and if there are safetensors, no
// weights in other formats. If the folder has a single GGUF file, it returns only that file.
func neededFiles(files []File) (found, error) {
	hasExt := func(ext string) func(File) bool {
		return func(f File) bool { return strings.HasSuffix(strings.ToLower(f.Name), ext) }
	}
	files = slices.DeleteFunc(slices.Clone(files), func(f File) bool { return strings.HasPrefix(f.Name, ".") || strings.Contains(f.Name, "/.") })
	if slices.ContainsFunc(files, hasExt(".safetensors")) {
		for _, ext := range otherFormats {
			files = slices.DeleteFunc(files, hasExt(ext))
		}
		return found{files: files}, nil
	}
	single := slices.IndexFunc(files, hasExt(".gguf"))
	if single < 0 {
		return found{files: files}, nil
	}
	var names []string
	for _, f := range files {
		if hasExt(".gguf")(f) {
			names = append(names, f.Name)
		}
	}
	if len(names) > 1 {
		return found{}, &Error{Kind: ErrUnclear, Note: fmt.Sprintf("name one of its %d GGUF files, such as %s", len(names), names[0])}
	}
	return found{files: files[single : single+1], path: names[0]}, nil
}

// checkFiles refuses names that cannot be files below one folder of this host, and a checksum for more than one file.
func checkFiles(at Location, files []File) error {
	unclear := func(format string, args ...any) error {
		return &Error{Kind: ErrUnclear, Note: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(files) == 0:
		return &Error{Kind: ErrNotFound, Note: "it contains no files"}
	case len(files) > MaxFiles:
		return unclear("more than %d files", MaxFiles)
	case len(files) > 1 && at.SHA256 != "":
		return unclear("%d files, but only one sha256", len(files))
	}
	for _, f := range files {
		long := func(part string) bool { return len(part) > 255 }
		if !fs.ValidPath(f.Name) || f.Name == "." || strings.ContainsRune(f.Name, '\\') ||
			strings.ContainsFunc(f.Name, unicode.IsControl) ||
			slices.ContainsFunc(strings.Split(f.Name, "/"), long) || f.Name == manifestName || f.Name == progressName {
			return unclear("%.300q is not a valid file name on this host", f.Name)
		}
	}
	return nil
}
