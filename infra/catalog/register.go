package catalog

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A RegisterList says where the weights of models that clients register can be stored: folders of the hosts, and hf://
// and s3:// places. The parts of a place may contain the wildcards of [path.Match], and a place covers everything below
// it: hf:// is every repository, hf://org/*-GGUF and s3://bucket/models are some. An empty list allows no weights.
type RegisterList []string

// ParseRegisterList checks the entries of a list and leaves out empty ones.
func ParseRegisterList(entries []string) (RegisterList, error) {
	var list RegisterList
	for _, e := range entries {
		scheme, rest, remote := strings.Cut(e, "://")
		switch _, err := path.Match(rest, ""); {
		case e == "":
			continue
		case remote && scheme != string(SchemeHF) && scheme != string(SchemeS3):
			return nil, fmt.Errorf("%q: want a folder, hf:// or s3://", e)
		case remote && err != nil:
			return nil, fmt.Errorf("%q: %w", e, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// Check reports whether the list covers all weights of a model that a client registers or has registered. It sets
// Within to where the model's hosts must find the weights that are paths. It never covers a path with a ".." part, nor
// a name of hf:// or s3:// that [registrable] refuses.
func (l RegisterList) Check(m *Model) error {
	folders := slices.DeleteFunc(slices.Clone(l), func(e string) bool { return strings.Contains(e, "://") })
	m.Within = nil
	for _, text := range []string{m.Checkpoint, m.MMProj} {
		if text == "" {
			continue
		}
		c, ok := ParseCheckpoint(text), false
		if !registrable(c) {
			return fmt.Errorf("%q is not a name that clients may register: want hf://org/repo, hf://org/repo/file.gguf or s3://bucket/file.gguf, of letters, digits and . _ -", clip(text))
		}
		switch c.Scheme {
		case SchemePath:
			m.Within = folders
			ok = covered(c.Path, folders)
		case SchemeHF:
			ok = slices.ContainsFunc(l, func(e string) bool { return matches(e, "hf://", c.Repo+"/"+c.Path) })
		case SchemeS3:
			ok = slices.ContainsFunc(l, func(e string) bool { return matches(e, "s3://", c.Bucket+"/"+c.Path) })
		}
		if !ok {
			hint := ""
			if c.Scheme == SchemePath && !filepath.IsAbs(c.Path) { // maybe org/repo:variant, as Lemonade's clients have it
				hint = "; a file of Hugging Face is named hf://org/repo/file.gguf"
			}
			return fmt.Errorf("the operator does not allow models from %q (--register-allow)%s", clip(text), hint)
		}
	}
	return nil
}

// Parts of hf:// and s3:// places that clients may name. A models file may name more.
var (
	repoName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	weightFile = regexp.MustCompile(`\.(?:gguf|bin|safetensors|onnx)$`)
	address    = regexp.MustCompile(`(?i)^(?:0x[0-9a-f]+|[0-9]+)(?:\.(?:0x[0-9a-f]+|[0-9]+))+$`)
)

// registrable reports whether clients may name a place: no part of it can be mistaken for an option, an escape, a
// placeholder, a parent folder or an IP address, and a file's name ends as that of weights. A path is judged only by
// its folder.
func registrable(c Checkpoint) bool {
	var owner string
	var parts []string
	switch c.Scheme {
	case SchemePath:
		return true
	case SchemeS3:
		owner, parts = c.Bucket, []string{c.Bucket}
		if !bucketName.MatchString(c.Bucket) || c.Path == "" {
			return false
		}
	case SchemeHF:
		owner, _, _ = strings.Cut(c.Repo, "/")
		parts = strings.Split(c.Repo, "/")
		if c.Revision != "" {
			parts = append(parts, strings.Split(c.Revision, "/")...)
		}
	}
	if c.Path != "" {
		parts = append(parts, strings.Split(c.Path, "/")...)
	}
	return !address.MatchString(owner) && (c.Path == "" || weightFile.MatchString(c.Path)) &&
		!slices.ContainsFunc(parts, func(part string) bool { return !repoName.MatchString(part) || strings.Contains(part, "..") })
}

// matches reports whether an entry with a scheme covers a place under that scheme.
func matches(entry, scheme, place string) bool {
	pattern, ok := strings.CutPrefix(entry, scheme)
	if !ok {
		return false
	}
	pattern = strings.TrimSuffix(pattern, "/")
	if pattern == "" {
		return true
	}
	want, have := strings.Split(pattern, "/"), strings.Split(place, "/")
	if len(have) < len(want) {
		return false
	}
	for i, w := range want {
		if ok, err := path.Match(w, have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// covered reports whether a path is written as one below a folder and, if it exists on this machine, is there. Hosts
// may see other files, so they check again with [Below].
func covered(file string, folders []string) bool {
	if slices.Contains(strings.FieldsFunc(file, func(r rune) bool { return r == '/' || r == '\\' }), "..") {
		return false
	}
	abs, err := filepath.Abs(file)
	if err != nil || !slices.ContainsFunc(folders, func(f string) bool {
		root, err := filepath.Abs(f)
		return err == nil && inside(root, abs)
	}) {
		return false
	}
	if _, err := os.Lstat(file); err != nil {
		return true
	}
	return Below(file, folders)
}

// Below reports whether a file is below one of the folders on this machine once all symbolic links are resolved. It
// returns false for a file that does not exist.
func Below(file string, folders []string) bool {
	target, err := resolve(file)
	return err == nil && slices.ContainsFunc(folders, func(f string) bool {
		root, err := resolve(f)
		return err == nil && inside(root, target)
	})
}

func resolve(file string) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func inside(root, file string) bool {
	rel, err := filepath.Rel(root, file)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}
