package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Scheme is where a checkpoint is stored.
type Scheme string

// The schemes.
const (
	SchemePath Scheme = "path" // a file or folder of the host, or a name that the engine itself understands
	SchemeS3   Scheme = "s3"
	SchemeHF   Scheme = "hf"
)

// A Checkpoint is the parsed location of a model's weights.
type Checkpoint struct {
	Scheme Scheme
	// Path is the path for SchemePath, the key for SchemeS3, and for SchemeHF the file inside the repository, empty for
	// a whole repository.
	Path string
	// Bucket is set for SchemeS3 only.
	Bucket string
	// Repo is "org/repo", set for SchemeHF only.
	Repo string
	// Revision is the branch, tag or commit of a SchemeHF checkpoint; "" means the repository's main.
	Revision string
}

// String returns the checkpoint as a catalog names it; [ParseCheckpoint] is its inverse.
func (c Checkpoint) String() string {
	text := c.Path
	switch c.Scheme {
	case SchemeS3:
		text = "s3://" + c.Bucket + "/" + c.Path
	case SchemeHF:
		text = "hf://" + c.Repo
		if c.Path != "" {
			text += "/" + c.Path
		}
		if c.Revision != "" {
			text += "@" + c.Revision
		}
	}
	return text
}

// ParseCheckpoint parses a checkpoint. It never fails: missing parts of a known scheme are empty, and a catalog
// refuses them.
func ParseCheckpoint(s string) Checkpoint {
	if rest, ok := strings.CutPrefix(s, "s3://"); ok {
		bucket, key, _ := strings.Cut(rest, "/")
		return Checkpoint{Scheme: SchemeS3, Bucket: bucket, Path: key}
	}
	if rest, ok := strings.CutPrefix(s, "hf://"); ok {
		rest, revision, _ := strings.Cut(rest, "@")
		org, rest, _ := strings.Cut(rest, "/")
		repo, file, _ := strings.Cut(rest, "/")
		c := Checkpoint{Scheme: SchemeHF, Path: file, Revision: revision}
		if org != "" && repo != "" {
			c.Repo = org + "/" + repo
		}
		return c
	}
	return Checkpoint{Scheme: SchemePath, Path: s}
}

// wrong returns what is wrong with c, "" for nothing.
func (c Checkpoint) wrong() string {
	if strings.ContainsFunc(c.Bucket+c.Repo+c.Path+c.Revision, unicode.IsControl) {
		return "holds a control character"
	}
	if c.Scheme == SchemePath && strings.HasPrefix(c.Path, "-") {
		return "starts with a hyphen, so the engine would take it for a flag"
	}
	switch c.Scheme {
	case SchemeS3:
		if c.Bucket == "" || c.Path == "" || strings.HasSuffix(c.Path, "/") {
			return "want s3://bucket/key"
		}
	case SchemeHF:
		if c.Repo == "" || strings.Contains(c.Repo, ":") || strings.HasSuffix(c.Path, "/") {
			return "want hf://org/repo/file, or hf://org/repo for a whole repository"
		}
	case SchemePath:
		if scheme, _, ok := strings.Cut(c.Path, "://"); ok {
			return "unknown scheme " + scheme + ": want a path, s3:// or hf://"
		}
	}
	if c.Scheme != SchemePath {
		for part := range strings.SplitSeq(c.Repo+"/"+c.Path+"/"+c.Revision, "/") {
			if part == "." || part == ".." {
				return "holds a . or .. part"
			}
		}
	}
	return ""
}

func (c Checkpoint) stableID() string {
	if c.Scheme == SchemeHF {
		return strings.TrimPrefix(c.String(), "hf://")
	}
	return baseName(c.Path)
}

var (
	shardRE = regexp.MustCompile(`(?s)^(.*)-\d{5}-of-(\d{5})(\.[^.]*)?$`)
	quantRE = regexp.MustCompile(`(?i)[-._]((?:ud-)?i?q\d[a-z0-9_]*|tq\d_\d|bf16|fp?16|fp?32|fp8|mxfp4[a-z0-9_]*)$`)
)

// Shards returns the names of all parts of a split GGUF file, given any of them, such as
// name-Q4_K_M-00001-of-00003.gguf; for another file its name alone.
func Shards(name string) []string {
	m := shardRE.FindStringSubmatch(name)
	if m == nil || m[3] != ".gguf" {
		return []string{name}
	}
	count, _ := strconv.Atoi(m[2]) // five digits
	var names []string
	for i := 1; i <= min(count, maxShards); i++ {
		names = append(names, fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i, m[2]))
	}
	if !slices.Contains(names, name) { // part 7 of 3
		return []string{name}
	}
	return names
}

// maxShards bounds the parts of a file.
const maxShards = 1000

// Names returns the names that clients may use for the checkpoint: "org/repo", and "org/repo:quant" if the file's name
// shows its quantisation. Only hf:// checkpoints have names.
func (c Checkpoint) Names() []string {
	if c.Repo == "" {
		return nil
	}
	names := []string{c.Repo}
	base := baseName(c.Path)
	if m := shardRE.FindStringSubmatch(base); m != nil {
		base = m[1]
	} else if i := strings.LastIndexByte(base, '.'); i > 0 {
		base = base[:i]
	}
	if m := quantRE.FindStringSubmatch(base); m != nil {
		names = append(names, c.Repo+":"+m[1])
	}
	return names
}
