// Package setup writes a first models file: it looks for model files on this machine and describes those that
// llama-server can serve.
package setup

import (
	"cmp"
	"encoding/json"
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
	maxEntries  = 100_000 // files and folders of one place
	maxDepth    = 8       // folders below a place
	maxModels   = 500
	maxManifest = 1 << 20 // bytes
)

// A Model is a model file that was found.
type Model struct {
	Name    string // valid in a catalogue and unique in a scan
	Path    string // absolute
	MMProj  string // the projector beside it, "" for none
	Type    policy.Type
	Meta    plan.Meta
	stem    string // name of its file in lower case, without what says that it is a GGUF file
	aliases []string
}

// A Scan collects what is found. The zero value is ready.
type Scan struct {
	Models  []Model
	Skipped []string // "PATH: why", of files that are no models to serve
	seen    map[string]bool
}

// Usual returns the folders in which programs of this user keep models, whether they exist or not, and Ollama's stores.
func Usual(home string, env func(string) string) (folders, ollama []string) {
	folders = []string{"models"}
	if home != "" {
		for _, dir := range []string{"models", ".lmstudio/models", ".cache/lm-studio/models", ".cache/llama.cpp", ".cache/huggingface/hub"} {
			folders = append(folders, filepath.Join(home, dir))
		}
		ollama = append(ollama, filepath.Join(home, ".ollama/models"))
	}
	if hub := env("HF_HUB_CACHE"); hub != "" {
		folders = append(folders, hub)
	}
	if dir := env("OLLAMA_MODELS"); dir != "" {
		ollama = append(ollama, dir)
	}
	return folders, append(ollama, "/usr/share/ollama/.ollama/models")
}

var (
	laterPart = regexp.MustCompile(`-(\d{5})-of-\d{5}$`)
	quantized = regexp.MustCompile(`[-_.](f16|f32|bf16|q[0-9]_[0-9k](_[a-z0-9]+)?|iq[0-9]_[a-z]+)$`)
	blob      = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
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

// Ollama looks for the models of an Ollama store, by its manifests. It reads no file outside the store.
func (s *Scan) Ollama(dir string) error {
	dir, root, err := open(dir)
	if root == nil {
		return err
	}
	defer root.Close()
	entries := 0
	err = fs.WalkDir(root.FS(), "manifests", func(name string, d fs.DirEntry, err error) error {
		if entries++; entries > maxEntries || len(s.Models) >= maxModels {
			return fs.SkipAll
		}
		parts := strings.Split(name, "/") // manifests/registry/namespace/model/tag
		if err != nil || d.IsDir() || !d.Type().IsRegular() || len(parts) != 5 {
			return nil
		}
		m, err := s.manifest(root, dir, name)
		if err != nil {
			s.skip(filepath.Join(dir, name), err)
			return nil
		}
		if m.Path == "" {
			return nil
		}
		model, tag := parts[3], parts[4]
		if parts[2] != "library" && !strings.Contains(parts[1], "hf.co") {
			model = parts[2] + "/" + model
		}
		if tag == "latest" {
			m.aliases = []string{model + ":latest"}
			s.add(m, model)
		} else {
			s.add(m, model+":"+tag)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// manifest reads a manifest and the model that it names; one without a path was found before.
func (s *Scan) manifest(root *os.Root, dir, name string) (Model, error) {
	info, err := root.Stat(name)
	if err != nil || info.Size() > maxManifest {
		return Model{}, cmp.Or(err, errors.New("too large for a manifest"))
	}
	text, err := root.ReadFile(name)
	if err != nil {
		return Model{}, err
	}
	var of struct {
		Layers []struct{ MediaType, Digest string }
	}
	if err := json.Unmarshal(text, &of); err != nil {
		return Model{}, errors.New("not a manifest")
	}
	files := map[string]string{} // the first of each kind
	for _, l := range of.Layers {
		kind, is := strings.CutPrefix(l.MediaType, "application/vnd.ollama.image.")
		if !is || kind != "model" && kind != "projector" || files[kind] != "" {
			continue
		}
		if !blob.MatchString(l.Digest) {
			return Model{}, errors.New("names a blob without a checksum")
		}
		file := "blobs/" + strings.Replace(l.Digest, ":", "-", 1)
		if info, err := root.Stat(file); err != nil || !info.Mode().IsRegular() {
			return Model{}, cmp.Or(err, errors.New("its blob is not a file"))
		}
		files[kind] = filepath.Join(dir, file)
	}
	if files["model"] == "" {
		return Model{}, errors.New("names no model")
	}
	m, err := s.read(files["model"])
	if m.Path != "" {
		m.MMProj = files["projector"]
	}
	return m, err
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
	used := func(name string) bool {
		return slices.ContainsFunc(s.Models, func(o Model) bool { return o.Name == name || slices.Contains(o.aliases, name) })
	}
	m.Name = name
	for n := 2; used(m.Name); n++ {
		m.Name = fmt.Sprintf("%s-%d", strings.ReplaceAll(name, ":", "-"), n)
	}
	m.aliases = slices.DeleteFunc(m.aliases, func(a string) bool { return used(a) || !catalog.ValidModelName(a) })
	s.Models = append(s.Models, m)
}

func (s *Scan) skip(path string, err error) {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	s.Skipped = append(s.Skipped, fmt.Sprintf("%s: %v", path, err))
}
