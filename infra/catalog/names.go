package catalog

import (
	"regexp"
	"strings"
)

var (
	modelNameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63})?(:[A-Za-z0-9._-]{1,63})?$`)
	hostNameRE  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
)

// maxLabels bounds the labels of a registered model.
const maxLabels = 32

// maxName is the length of the longest text that modelNameRE accepts.
const maxName = 64 + 1 + 64 + 1 + 63

// ValidModelName reports whether s may be a model's id or alias: at most two parts of letters, digits and ". _ -",
// divided by a slash, and a tag after a colon; never with "..".
func ValidModelName(s string) bool {
	return len(s) <= maxName && modelNameRE.MatchString(s) && !strings.Contains(s, "..")
}

// ValidHostName reports whether s may be the name or a label of a host: one part of a model's name.
func ValidHostName(s string) bool {
	return hostNameRE.MatchString(s) && !strings.Contains(s, "..")
}

const (
	modelNameHint = `want letters, digits and . _ - in at most two parts divided by "/", then perhaps a ":tag"; no ".."`
	hostNameHint  = `want at most 64 letters, digits and . _ -, the first a letter or digit; no ".."`
)
