package constraint

import (
	"slices"
	"strings"
)

var unescaped = strings.NewReplacer("~1", "/", "~0", "~")

// maxCopied bounds the schemas that references lead to: llama.cpp writes each out once for each spelling of a reference.
const maxCopied = maxConstraint

// maxPassed bounds the bytes that are passed on the way to what references lead to. llama.cpp copies the whole schema for each
// reference, and then once more for each step what lies behind it: some 16 ns a byte.
const maxPassed = 256 << 20

// resolve returns the place of the schema that a reference leads to. Like
// llama.cpp it takes names as they are; definitions of inner schemas count as
// those of the whole.
func (k *skeleton) resolve(ref string) string {
	place, known := k.leads[ref]
	if !known && k.spend(lookWork, len(ref)) {
		place = k.lookUp(ref)
		k.leads[ref] = place
		if base := k.bases[ref]; k.shapes[base] != nil {
			k.passed += k.shapes[base].size * (1 + strings.Count(ref[len(base):], "/"))
		}
		if s := k.shapes[place]; s != nil {
			k.copied += s.size + s.size/64*len(ref) // its rules have names that begin with the reference
			k.referred = append(k.referred, place)
		}
	}
	return place
}

// lookUp returns the place that a reference leads to, in one of its two forms. It knows only one form of a number where an engine
// knows several, so a reference that it cannot follow may still lead somewhere in an engine (astray).
func (k *skeleton) lookUp(ref string) string {
	if place, ok := k.schemaAt(ref); ok {
		return place
	}
	if strings.Contains(ref, "~") && k.spend(0, 2*len(ref)) {
		if place, ok := k.schemaAt(unescaped.Replace(ref)); ok {
			return place
		}
	}
	k.lost = true
	k.astray = k.astray || !k.dangles(ref)
	return ref
}

// dangles reports whether a reference that leads to no schema here leads to none in an engine either, because its definition is
// missing. Other references may lead an engine to something that is not a schema, or to an index that wraps around.
func (k *skeleton) dangles(ref string) bool {
	end := strings.LastIndexByte(ref, '/')
	if end < 0 || ref[0] == '/' {
		return ref[0] == '/' // of no whole schema
	}
	name := ref[end+1:]
	if name == "" || strings.IndexByte(" \t\n\v\f\r+-0123456789", name[0]) >= 0 {
		return false
	}
	for _, list := range [...]string{"/$defs", "/definitions", "/components/schemas"} {
		if root, ok := strings.CutSuffix(ref[:end], list); ok && slices.Contains(k.roots, root) {
			return true
		}
	}
	return false
}

// schemaAt returns the place of the schema that a reference in one form leads to.
func (k *skeleton) schemaAt(place string) (string, bool) {
	if k.shapes[place] != nil {
		return place, true
	}
	start := strings.Index(place, "/$defs/")
	if start < 0 {
		return "", false
	}
	start += len("/$defs/")
	end := len(place)
	if n := strings.IndexByte(place[start:], '/'); n >= 0 {
		end = start + n
	}
	inner := k.inner[place[:end]] + place[end:]
	return inner, k.shapes[inner] != nil
}

// behind follows references.
func (k *skeleton) behind(place string) string {
	var passed []string
	for k.spend(lookWork, len(place)) {
		if end, known := k.ends[place]; known {
			place = end
			break
		}
		s := k.shapes[place]
		if s == nil || s.ref == "" {
			break
		}
		passed = append(passed, place)
		place = k.resolve(s.ref)
	}
	for _, p := range passed {
		k.ends[p] = place
	}
	return place
}
