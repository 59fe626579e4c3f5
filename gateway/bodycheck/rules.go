package bodycheck

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// kind is what a field may hold. Null is always accepted; it means the engine's default.
type kind uint8

const (
	anyScalar kind = iota // text, number or boolean
	elsewhere             // nothing: it belongs in another place
	boolean
	number    // between low and high
	boolOrNum // likewise
	text      // of at most 64 KiB
	long      // a text of any length
	texts     // a text, or a list of at most maxTexts
	samplers  // a list of at most maxSamplers of samplerNames, or a text of samplerLetters, each sampler once
	few       // a list of 1 to 8 texts, of at most 256 bytes in all
	biases    // an object of numbers by token, or a list of pairs of a token or text and a number, of at most 64 KiB
	small     // anything of at most 64 KiB that nests at most 16 levels
	object    // likewise, an object; members has rules of its members
	prompts   // a text, tokens and texts, or a list of such
	inputs    // likewise; Finish looks into a list with objects
	mixed     // a text, or a list of tokens and texts
	tokens    // a list of tokens
	imageText // a text of at most 64 KiB that describes a picture
	imageSize // "auto", or width and height as in 512x512
	documents // a list of texts, and of objects that hold scalars and no media
	content   // Finish looks into it, and into the kinds below
	tools
	schema  // an object with a JSON schema
	grammar // GBNF
)

const (
	smallBytes = 64 << 10
	maxToSplit = 1 << 20 // bytes of a text to be tokenized: an engine takes 120 bytes of memory for each to return the pieces
	smallDepth = 16
	maxTexts   = 64
	// An engine runs each of the samplers for every token.
	maxSamplers = 16
)

// samplerNames are llama.cpp's names of its samplers, each with the one that means the same, and samplerLetters its letters for
// them, without "infill" and "i": that sampler compares each token of the vocabulary with each other one, which takes minutes.
var samplerNames = map[string]string{
	"dry": "dry", "top_k": "top_k", "top-k": "top_k", "typ_p": "typ_p", "typ-p": "typ_p", "typ": "typ_p", "typical": "typ_p", "typical-p": "typ_p",
	"top_p": "top_p", "top-p": "top_p", "nucleus": "top_p", "top_n_sigma": "top_n_sigma", "top-n-sigma": "top_n_sigma", "min_p": "min_p", "min-p": "min_p",
	"temperature": "temperature", "temp": "temperature", "xtc": "xtc", "penalties": "penalties", "adaptive_p": "adaptive_p", "adaptive-p": "adaptive_p",
}

const samplerLetters = "dkypsmtxea"

// rule is what a field may hold.
type rule struct {
	kind      kind
	low, high float64 // of a number
	bytes     int     // at most, as JSON; 0 is no bound of its own
	least     float64 // of a number above 0
	keptAs    valueID // where Finish finds the value
	members   map[string]rule
	drops     string // JSON of a value with which the field is blanked as if it were unknown; "" for none
}

func between(low, high float64) rule { return rule{kind: number, low: low, high: high} }

// keepAs keeps the value for Finish.
func (r rule) keepAs(s valueID) rule {
	r.keptAs = s
	return r
}

func (r rule) check(name []byte, v jsonscan.Value) *api.Error {
	if !v.Set() {
		return nil
	}
	if r.bytes > 0 && len(v.Raw) > r.bytes {
		return api.Newf(api.InvalidType, "'%s' may have at most %d bytes.", name, r.bytes).WithParam(string(name))
	}
	if r.kind != content && !(r.kind == inputs && pictured(v)) { // these may hold media; Finish looks into them
		if e := unbroken(string(name), v); e != nil {
			return e
		}
	}
	switch r.kind {
	case anyScalar:
		if v.Kind == jsonscan.Array || v.Kind == jsonscan.Object {
			return wrong(name, "a text, a number or a boolean")
		}
	case elsewhere:
		return api.Newf(api.UnsupportedParameter, "'%s' would replace what the request holds in its own place, and is not accepted.", name).WithParam(string(name))
	case boolean:
		if v.Kind != jsonscan.Bool {
			return wrong(name, "a boolean")
		}
	case boolOrNum:
		if v.Kind != jsonscan.Bool {
			return r.inRange(name, v)
		}
	case number:
		return r.inRange(name, v)
	case text, long, grammar, imageText, imageSize:
		if v.Kind != jsonscan.String {
			return wrong(name, "a text")
		}
	case texts:
		if v.Kind != jsonscan.String && !isList(v, isTextOrNull) {
			return wrong(name, "a text or a list of texts")
		}
		if v.Len() > maxTexts {
			return api.Newf(api.InvalidType, "'%s' has %d items; at most %d are accepted.", name, v.Len(), maxTexts).WithParam(string(name))
		}
	case samplers:
		if !areSamplers(v) {
			return wrong(name, fmt.Sprintf("a list of at most %d of %s, or a text of the letters %s, each sampler once", maxSamplers, strings.Join(slices.Sorted(maps.Keys(samplerNames)), ", "), samplerLetters))
		}
	case few:
		if v.Empty() || v.Len() > 8 || len(v.Raw) > 256 || !isList(v, isText) {
			return wrong(name, "a list of 1 to 8 short texts")
		}
	case biases:
		if !areBiases(v) {
			return wrong(name, fmt.Sprintf("an object of biases by token, or a list of pairs of a token and its bias; biases are false or from -%d to %d", maxBias, maxBias))
		}
	case object, schema:
		if v.Kind != jsonscan.Object {
			return wrong(name, "an object")
		}
	case inputs:
		if !pictured(v) {
			return rule{kind: prompts}.checkTokens(name, v)
		}
	case prompts, mixed, tokens:
		return r.checkTokens(name, v)
	case documents:
		if !isList(v, isDocument) {
			return wrong(name, "a list of texts or of objects with a text")
		}
	case tools:
		if v.Kind != jsonscan.Array {
			return wrong(name, "a list")
		}
	}
	switch r.kind {
	case anyScalar, text, texts, biases, small, object, imageText, imageSize:
		if len(v.Raw) > smallBytes || v.Depth() > smallDepth {
			return api.Newf(api.InvalidType, "'%s' is too large; at most %d bytes and %d levels are accepted.", name, smallBytes, smallDepth).WithParam(string(name))
		}
	}
	switch r.kind {
	case object:
		return r.checkMembers(name, v)
	case imageSize:
		return size(name, v.Bytes())
	case imageText:
		return describes(name, v.Bytes())
	}
	return nil
}

func areSamplers(v jsonscan.Value) bool {
	if v.Kind == jsonscan.String {
		letters := v.String()
		return len(letters) <= len(samplerLetters) && !slices.ContainsFunc([]byte(letters), func(c byte) bool {
			return strings.IndexByte(samplerLetters, c) < 0 || strings.Count(letters, string(c)) > 1
		})
	}
	seen := map[string]bool{} // a sampler that runs twice takes scores out of the range of 32-bit floats
	return len(v.Raw) <= smallBytes && v.Len() <= maxSamplers && isList(v, func(item jsonscan.Value) bool {
		name, known := samplerNames[item.String()]
		fresh := isText(item) && known && !seen[name]
		seen[name] = true
		return fresh
	})
}

// maxBias bounds a bias. A large one is infinite as a 32-bit float, and the score of a token that a grammar forbids becomes NaN:
// the engine picks the token and aborts.
const maxBias = 1_000_000

func areBiases(v jsonscan.Value) bool {
	w := jsonscan.WalkOf(v.Raw)
	switch v.Kind {
	case jsonscan.Object:
		return w.Object(func([]byte) bool { return isBias(w.Raw()) })
	case jsonscan.Array:
		return w.Array(func() bool {
			n := 0
			return isList(w.Raw(), func(item jsonscan.Value) bool {
				n++
				return n == 1 && (isText(item) || isToken(item)) || n == 2 && isBias(item)
			}) && n == 2
		})
	}
	return false
}

func isBias(v jsonscan.Value) bool {
	if v.Kind == jsonscan.Bool {
		return true
	}
	x, err := strconv.ParseFloat(string(v.Raw), 64)
	return v.Kind == jsonscan.Number && err == nil && x >= -maxBias && x <= maxBias
}

// checkMembers checks the members of an object by their own rules.
func (r rule) checkMembers(name []byte, v jsonscan.Value) (e *api.Error) {
	w := jsonscan.WalkOf(v.Raw)
	w.Object(func(member []byte) bool {
		if inner, known := r.members[string(member)]; known {
			e = inner.check(append(append(name[:len(name):len(name)], '.'), member...), w.Raw())
		}
		return e == nil
	})
	return e
}

// checkTokens checks a prompt, or a part of one, that may be given as tokens.
func (r rule) checkTokens(name []byte, v jsonscan.Value) *api.Error {
	ok, want := false, "a list of tokens"
	switch r.kind {
	case prompts:
		ok, want = v.Kind == jsonscan.String || isPrompts(v), "a text, or a list of texts and tokens that is not empty"
	case mixed:
		ok, want = v.Kind == jsonscan.String || isList(v, isTextOrToken), "a text, or a list of texts and tokens"
	case tokens:
		ok = isList(v, isToken)
	}
	switch {
	case ok:
		return nil
	case v.HasObject():
		return api.Newf(api.UnsupportedParameter, "'%s' must be %s.", name, want).WithParam(string(name))
	}
	return wrong(name, want+"; tokens are whole numbers from 0 to 2147483647")
}

// isList reports whether v is a list whose items all satisfy is.
func isList(v jsonscan.Value, is func(jsonscan.Value) bool) bool {
	if v.Kind != jsonscan.Array {
		return false
	}
	w := jsonscan.WalkOf(v.Raw)
	return w.Array(func() bool { return is(w.Raw()) })
}

func isText(v jsonscan.Value) bool { return v.Kind == jsonscan.String }

func isTextOrNull(v jsonscan.Value) bool { return isText(v) || v.Kind == jsonscan.Null }

// isToken reports whether v is a whole number from 0 to 2147483647, written without fraction and exponent: engines parse
// other notations as fractions.
func isToken(v jsonscan.Value) bool {
	if v.Kind != jsonscan.Number {
		return false
	}
	_, err := strconv.ParseUint(string(v.Raw), 10, 31)
	return err == nil
}

func isTextOrToken(v jsonscan.Value) bool { return isText(v) || isToken(v) }

// several reports whether v requests more than one answer.
func several(v jsonscan.Value) bool { return v.Set() && string(v.Raw) != "1" }

// isPrompts reports whether v is a prompt of tokens and texts, or a list of prompts: non-empty texts, and lists that hold a
// token. For an empty prompt llama.cpp gives only the first of several answers and keeps the sequences of the others.
func isPrompts(v jsonscan.Value) bool {
	some, token, list := false, false, false
	return isList(v, func(item jsonscan.Value) bool {
		some = true
		if item.Kind != jsonscan.Array {
			token = token || item.Kind == jsonscan.Number
			return isTextOrToken(item) && string(item.Raw) != `""`
		}
		list = true
		return isMixed(item)
	}) && some && !(token && list)
}

// isMixed reports whether v is a list of texts and tokens with at least one token.
func isMixed(v jsonscan.Value) bool { return isList(v, isTextOrToken) && !isList(v, isText) }

// isDocument reports whether v is a text, or an object of scalars that names no media.
func isDocument(v jsonscan.Value) bool {
	if v.Kind != jsonscan.Object {
		return isText(v)
	}
	w := jsonscan.WalkOf(v.Raw)
	return w.Object(func(name []byte) bool {
		k := w.Raw().Kind
		return !mediaName(name) && k != jsonscan.Array && k != jsonscan.Object
	})
}

func (r rule) inRange(name []byte, v jsonscan.Value) *api.Error {
	if v.Kind != jsonscan.Number {
		return wrong(name, "a number")
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	if err == nil && f < 0 && string(name) == "n_discard" {
		return reaches(name)
	}
	if err != nil || f < r.low || f > r.high {
		return r.outside(name)
	}
	if f > 0 && f < r.least {
		return api.Newf(api.InvalidType, "'%s' must not lie between 0 and %g.", name, r.least).WithParam(string(name))
	}
	return nil
}

func (r rule) outside(name []byte) *api.Error {
	return api.Newf(api.InvalidType, "'%s' must be between %.10g and %.10g.", name, r.low, r.high).WithParam(string(name))
}

func reaches(name []byte) *api.Error {
	return api.Newf(api.UnsupportedParameter, "'%s' reaches into an engine that others share and is not accepted here.", name).WithParam(string(name))
}

func wrong(name []byte, want string) *api.Error {
	return api.Newf(api.InvalidType, "'%s' must be %s.", name, want).WithParam(string(name))
}
