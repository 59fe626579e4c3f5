package bodycheck

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// maxRun is the most characters of one kind in a row that a text may have. llama.cpp splits texts with std::regex, which
// recurses for each character of a match: some 20,000 letters fill a thread's stack of 8 MiB.
const maxRun = 16 << 10

// maxUnbroken is the most bytes, as JSON, that a text may have between two breaks: tokenizers such as bloom's match up to the
// next break, whatever the kinds of characters.
const maxUnbroken = 100_000

// maxNesting is how many brackets a text may open without closing them. Engines read texts that hold JSON, such as the
// arguments of calls, by recursion; some 50,000 levels fill a thread's stack of 64 MiB.
const maxNesting = 10_000

// breaks are the characters, besides white space, at which such tokenizers split a text.
const (
	asciiBreaks = "(|.,!?)"
	otherBreaks = "…。，、।۔،"
)

// charKind is a kind of character that tokenizers match runs of.
type charKind uint8

const (
	quote charKind = iota // unescaped, as around the strings of a JSON value: it ends a text
	letter
	digit
	blank
	symbol
	escape // in asciiKinds alone: the character that follows tells
)

var kindNames = [...]string{letter: "letters", digit: "digits", blank: "white-space characters", symbol: "characters that are neither letters nor digits"}

var asciiKinds = func() (kinds [utf8.RuneSelf]charKind) {
	for c := range kinds {
		kinds[c] = runeKind(rune(c))
	}
	kinds['"'], kinds['\\'] = quote, escape
	return kinds
}()

func runeKind(r rune) charKind {
	switch {
	case unicode.IsLetter(r) || unicode.IsMark(r):
		return letter
	case unicode.IsNumber(r):
		return digit
	case unicode.IsSpace(r):
		return blank
	}
	return symbol
}

// kindAt returns the kind of the first character of b, which is JSON, and its size in bytes.
func kindAt(b []byte) (charKind, int) {
	switch c := b[0]; {
	case c == '\\':
		return escapeKind(b)
	case c < utf8.RuneSelf:
		return asciiKinds[c], 1
	}
	r, size := utf8.DecodeRune(b)
	return runeKind(r), size
}

// escapeKind is kindAt for an escape sequence.
func escapeKind(b []byte) (charKind, int) {
	if len(b) < 2 {
		return symbol, 1
	}
	switch b[1] {
	case 'n', 'r', 't', 'f':
		return blank, 2
	case 'u':
		r, ok := escapedUnit(b)
		if !ok {
			return symbol, 2
		}
		if low, ok := escapedUnit(b[6:]); ok && utf16.IsSurrogate(r) {
			return runeKind(utf16.DecodeRune(r, low)), 12
		}
		return runeKind(r), 6
	}
	return symbol, 2
}

// escapedUnit decodes the \u sequence at the beginning of b, if there is one.
func escapedUnit(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(unit), err == nil
}

// run tracks the run of characters of one kind at the end of a text.
type run struct {
	kind     charKind
	length   int
	unbroken int // bytes since the last break
	nesting  int // open brackets
}

// nests continues with b and reports whether the number of open brackets stays within its limit.
func (r *run) nests(b []byte) bool {
	for {
		n := jsonscan.IndexBracket(b)
		if n < 0 {
			return true
		}
		c, size := rune(b[n]), 1
		if c == '\\' {
			size = 2
			if unit, ok := escapedUnit(b[n:]); ok {
				c, size = unit, 6
			}
		}
		switch c {
		case '[', '{':
			if r.nesting++; r.nesting > maxNesting {
				return false
			}
		case ']', '}':
			r.nesting = max(r.nesting-1, 0)
		}
		b = b[min(n+size, len(b)):]
	}
}

// jump is how many bytes skip searches for a change of kind.
const jump = 256

// read continues with b, which is JSON or the inside of a JSON string, and reports whether all runs so far are short enough.
func (r *run) read(b []byte) bool {
	for i := 0; i < len(b); {
		// A run that ends within far is short enough, so what lies before its end need not be read.
		far := min(i+maxRun-r.length, len(b))
		if far-i > jump {
			if at := kindChange(b[far-jump : far]); at > 0 {
				i = far - jump + at
				r.length = 0
				continue
			}
		}
		for end := min(i+4*jump, len(b)); i < end; {
			kind, size := kindAt(b[i:])
			if kind != r.kind || kind == quote {
				r.kind, r.length = kind, 0
			}
			r.length++
			for i += size; i < end && b[i] < utf8.RuneSelf && asciiKinds[b[i]] == kind && kind != quote; i++ {
				r.length++
			}
			if r.length > maxRun {
				return false
			}
		}
	}
	return true
}

// broken continues with b and reports whether breaks come often enough.
func (r *run) broken(b []byte) bool {
	for len(b) > 0 {
		far := min(maxUnbroken-r.unbroken, len(b))
		at := lastBreak(b[:far])
		if at < 0 && far < len(b) {
			return false
		}
		if at < 0 {
			r.unbroken += far
			return true
		}
		b, r.unbroken = b[at+1:], 0
	}
	return true
}

// lastBreak returns where the last break in b ends, or -1. It need not find a break behind others.
func lastBreak(b []byte) int {
	if at := bytes.LastIndexAny(b, " "+asciiBreaks); at >= 0 {
		return at
	}
	last := -1
	for i := 0; i < len(b); {
		n := bytes.IndexByte(b[i:], '\\')
		if n < 0 {
			break
		}
		i += n
		kind, size := escapeKind(b[i:])
		unit, ok := escapedUnit(b[i:])
		if kind == blank || ok && strings.ContainsRune(otherBreaks, unit) {
			last = i + size - 1
		}
		i += size
	}
	if at := bytes.LastIndexAny(b, otherBreaks); at > last {
		_, size := utf8.DecodeRune(b[at:])
		return at + size - 1
	}
	return last
}

// kindChange returns where in b, which may begin and end inside a character, a character follows one of another kind, or -1.
func kindChange(b []byte) int {
	const longest = len(`\u0000`)
	at := max(bytes.LastIndexByte(b, '\\')+longest, longest-1)
	for at < len(b) && !utf8.RuneStart(b[at]) {
		at++
	}
	for first, before := true, quote; at < len(b); first = false {
		if !utf8.FullRune(b[at:]) {
			return -1
		}
		kind, size := kindAt(b[at:])
		if !first && kind != before {
			return at
		}
		before = kind
		at += size
	}
	return -1
}

// unbroken refuses a value that holds a text with a run that is too long.
func unbroken(param string, v jsonscan.Value) *api.Error {
	if len(v.Raw) <= maxRun {
		return nil
	}
	var r run
	return r.add(param, v.Raw)
}

// add continues with b and refuses a run that is too long.
func (r *run) add(param string, b []byte) *api.Error {
	if !r.broken(b) {
		return api.Newf(api.InvalidType, "'%s' has more than %d bytes in a row without white space and punctuation, which can crash a tokenizer; break them up.", param, maxUnbroken).WithParam(param)
	}
	if !r.nests(b) {
		return api.Newf(api.InvalidType, "'%s' opens more than %d brackets without closing them, which can crash a parser.", param, maxNesting).WithParam(param)
	}
	if r.read(b) {
		return nil
	}
	return api.Newf(api.InvalidType, "'%s' has more than %d %s in a row, which can crash a tokenizer; shorten the run or break it up.", param, maxRun, kindNames[r.kind]).WithParam(param)
}
