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
	maxDepth   = 8       // folders below a place
	maxModels  = 500
)

// A Model is a model file that was found.
type Model struct {
	Name   string // valid in a catalogue and unique in a scan
	Path   string // absolute
	MMProj string // the projector beside it, "" for none
	Type   policy.Type
	Meta   plan.Meta
	stem   string // name of its file in lower case, without its extension and part
}

// A Scan collects what is found. The zero value is ready.
type Scan struct {
	Models  []Model
	Skipped []string // "PATH: why", of files that are no models to serve
	seen    map[string]bool
}

// Usual returns the folders in which programs of this user keep GGUF files, whether they exist or not.
func Usual(home string, env func(string) string) []string {
	folders := []string{"models"}
	if home != "" {
		for _, dir := range []string{"models", ".lmstudio/models", ".cache/llama.cpp", ".cache/huggingface/hub"} {
			folders = append(folders, filepath.Join(home, dir))
		}
	}
	if hub := env("HF_HUB_CACHE"); hub != "" {
		folders = append(folders, hub)
	}
	return folders
}

var (
	laterPart = regexp.MustCompile(`-(\d{5})-of-\d{5}$`)
	quantized = regexp.MustCompile(`[-_.](f16|f32|bf16|q[0-9]_[0-9k](_[a-z0-9]+)?|iq[0-9]_[a-z]+)$`)
)

// Folder looks for GGUF files in a folder and below it. It enters no linked folder, and follows a link to a file only
// within the folder. A folder that does not exist has none; other errors name the folder.
func (s *Scan) Folder(dir string) error {
	dir, root, err := open(dir)
	if root == nil {
		return err
	}
	defer root.Close()
	var models []Model
	projectors := map[string][]string{} // by folder
	entries := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		path := filepath.Join(dir, name)
		if err != nil {
			s.skip(path, err)
			return nil
		}
		if entries++; entries > maxEntries || len(s.Models)+len(models) >= maxModels {
			s.skip(dir, fmt.Errorf("too large to search whole: name folders below it"))
			return fs.SkipAll
		}
		if d.IsDir() {
			if strings.Count(name, "/") >= maxDepth {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.EqualFold(filepath.Ext(name), ".gguf") {
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
			m.stem = stem
			models = append(models, m)
		}
		return nil
	})
	pair(models, projectors)
	for _, m := range models {
		s.add(m, strings.ReplaceAll(m.stem, ":", " ")) // a colon starts a tag
	}
	return err
}

// open opens a folder and returns its absolute path. Without an error and a root, it does not exist.
func open(dir string) (string, *os.Root, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil, nil
	}
	return dir, root, err
}

// pair gives each language model the projector beside it: of several, the one whose name, without mmproj and its
// quantization, begins the model's; and one that names nothing if it is alone with one model.
func pair(models []Model, projectors map[string][]string) {
	beside := map[string]int{} // language models by folder
	for _, m := range models {
		if m.Type == policy.LLM {
			beside[filepath.Dir(m.Path)]++
		}
	}
	for i := range models {
		m := &models[i]
		if m.Type != policy.LLM {
			continue
		}
		dir, longest := filepath.Dir(m.Path), -1
		for _, p := range projectors[dir] {
			of := strings.ToLower(strings.TrimSuffix(filepath.Base(p), filepath.Ext(p)))
			of = strings.Trim(strings.ReplaceAll(quantized.ReplaceAllString(of, ""), "mmproj", ""), "-_.")
			if quantized.MatchString("-" + of) { // mmproj-f16
				of = ""
			}
			named := of != "" && strings.HasPrefix(m.stem, of)
			alone := of == "" && beside[dir] == 1
			if (named || alone) && len(of) > longest {
				m.MMProj, longest = p, len(of)
			}
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
