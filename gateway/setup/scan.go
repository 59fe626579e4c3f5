// Package setup writes a first models file: it looks for model files on this machine and describes those that
// llama-server can serve.
package setup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/runner/plan"
)

// Bounds of a scan.
const (
	maxEntries = 100_000 // files and folders of one place
	maxModels  = 500
)

// A Model is a model file that was found.
type Model struct {
	Name   string // valid in a catalog and unique in a scan
	Path   string // absolute
	MMProj string // the projector in the same folder, "" for none
	Type   policy.Type
	Meta   plan.Meta
}

// A Scan collects what is found. The zero value is ready.
type Scan struct {
	Models  []Model
	Skipped []string // "PATH: reason", of files that are not served
	seen    map[string]bool
}

// Caches returns the folders in which llama.cpp and Hugging Face's programs keep what they fetched, whether they exist
// or not.
func Caches(home string, env func(string) string) []string {
	return []string{
		cmp.Or(env("LLAMA_CACHE"), filepath.Join(home, ".cache/llama.cpp")),
		cmp.Or(env("HF_HUB_CACHE"), filepath.Join(home, ".cache/huggingface/hub")),
	}
}

var laterPart = regexp.MustCompile(`-(\d{5})-of-\d{5}$`)

// Folder looks for GGUF files in a folder and below it. It enters no linked folder, and follows a link to a file only
// within the folder. A folder that does not exist has none; other errors name the folder.
func (s *Scan) Folder(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	before, entries := len(s.Models), 0
	projectors := map[string][]string{} // by folder
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		path := filepath.Join(dir, name)
		if err != nil {
			s.skip(path, err)
			return nil
		}
		if entries++; entries > maxEntries || len(s.Models) >= maxModels {
			s.skip(dir, errors.New("too large to search whole: name folders below it"))
			return fs.SkipAll
		}
		if d.IsDir() || !strings.EqualFold(filepath.Ext(name), ".gguf") {
			return nil
		}
		if !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
			s.skip(path, errors.New("a models file cannot hold its name"))
			return nil
		}
		stem := strings.ToLower(strings.TrimSuffix(d.Name(), filepath.Ext(d.Name())))
		if part := laterPart.FindStringSubmatch(stem); part != nil {
			if part[1] != "00001" {
				return nil
			}
			stem = strings.TrimSuffix(stem, part[0])
		}
		if info, err := root.Stat(name); err != nil || !info.Mode().IsRegular() {
			s.skip(path, cmp.Or(err, errors.New("not a file")))
			return nil
		}
		m, err := s.read(path)
		switch {
		case errors.Is(err, plan.ErrProjector):
			projectors[filepath.Dir(path)] = append(projectors[filepath.Dir(path)], path)
		case err != nil:
			s.skip(path, err)
		case m.Path != "":
			s.add(m, strings.ReplaceAll(stem, ":", " ")) // a colon starts a tag
		}
		return nil
	})
	pair(s.Models[before:], projectors)
	return err
}

// pair gives a language model the projector in its folder, if the folder has only these two.
func pair(models []Model, projectors map[string][]string) {
	beside := map[string][]*Model{} // language models by folder
	for i := range models {
		if m := &models[i]; m.Type == policy.LLM {
			beside[filepath.Dir(m.Path)] = append(beside[filepath.Dir(m.Path)], m)
		}
	}
	for dir, found := range projectors {
		if len(found) == 1 && len(beside[dir]) == 1 {
			beside[dir][0].MMProj = found[0]
		}
	}
}

// read reads a file's header. A file that was found before gives a model without a path.
func (s *Scan) read(path string) (Model, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil || s.seen[real] {
		return Model{}, err
	}
	meta, err := plan.Read(path)
	if err != nil {
		return Model{}, err
	}
	if meta.Layers == 0 || meta.Vocab == 0 {
		return Model{}, fmt.Errorf("architecture %q is none of a text model", meta.Arch)
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[real] = true
	t := policy.LLM
	switch {
	case meta.Pooling == plan.PoolingRank:
		t = policy.Reranking
	case meta.Pooling != 0, !meta.Causal:
		t = policy.Embedding
	}
	return Model{Path: path, Type: t, Meta: meta}, nil
}

// add gives a model a name that is valid and free.
func (s *Scan) add(m Model, name string) {
	name = strings.Trim(strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-:/", r)
	}), "-"), "._-:/")
	for strings.Contains(name, "..") {
		name = strings.ReplaceAll(name, "..", ".")
	}
	if !catalog.ValidModelName(name) {
		name = strings.TrimRight(strings.NewReplacer("/", "-", ":", "-").Replace(name), "._-")
		name = cmp.Or(strings.TrimRight(name[:min(len(name), 60)], "._-"), "model")
	}
	m.Name = name
	for n := 2; slices.ContainsFunc(s.Models, func(o Model) bool { return o.Name == m.Name }); n++ {
		m.Name = fmt.Sprintf("%s-%d", name, n)
	}
	s.Models = append(s.Models, m)
}

func (s *Scan) skip(path string, err error) {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	s.Skipped = append(s.Skipped, fmt.Sprintf("%s: %v", path, err))
}
