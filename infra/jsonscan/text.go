package jsonscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks, in the high bit of each byte of w, the bytes that end a plain
// run inside a string: the quote, the backslash and control characters. The
// lowest mark is exact; a mark above it may be a carry of the subtraction.
//
// Flipping bit 1 brings the quote (0x22) to 0x20 and keeps control characters
// below it, so one comparison with 0x21 finds both; space and '!' move up to
// 0x22 and 0x23, out of the way.
func special(w uint64) uint64 {
	low := (w ^ 0x02*ones) - 0x21*ones
	backslash := (w ^ '\\'*ones) - ones
	return (low | backslash) &^ w & highs
}

// SkipPlain returns the index of the first quote, backslash or control
// character of b at or after i, or len(b), and whether a byte outside ASCII
// was passed on the way.
func SkipPlain(b []byte, i int) (end int, wide bool) {
	var seen uint64
	if hasBlocks && len(b)-i >= blocks {
		n, w := plainBlocks(b[i:])
		if i += n; w {
			seen = highs
		}
	}
	for ; i+32 <= len(b); i += 32 {
		p := b[i : i+32 : i+32]
		w0 := binary.LittleEndian.Uint64(p[0:8])
		w1 := binary.LittleEndian.Uint64(p[8:16])
		w2 := binary.LittleEndian.Uint64(p[16:24])
		w3 := binary.LittleEndian.Uint64(p[24:32])
		if special(w0)|special(w1)|special(w2)|special(w3) != 0 {
			break
		}
		seen |= w0 | w1 | w2 | w3
	}
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		if mark := special(w); mark != 0 {
			at := bits.TrailingZeros64(mark) &^ 7 // first bit of the marked byte
			seen |= w & (1<<at - 1)
			return i + at/8, seen&highs != 0
		}
		seen |= w
	}
	for ; i < len(b); i++ {
		c := b[i]
		if c == '"' || c == '\\' || c < 0x20 {
			break
		}
		seen |= uint64(c)
	}
	return i, seen&highs != 0
}

// skipString validates the string whose opening quote is at b[i] and returns
// the index behind its closing quote.
func skipString(b []byte, i int) (end int, err error) {
	start := i
	i++
	wide := false
	for {
		next, w := SkipPlain(b, i)
		wide = wide || w
		i = next
		if i == len(b) {
			return 0, fail(len(b), "string is not closed")
		}
		switch b[i] {
		case '"':
			if wide && !utf8.Valid(b[start:i]) {
				return 0, fail(start+invalidAt(b[start:i]), "string is not UTF-8")
			}
			return i + 1, nil
		case '\\':
			if i, err = skipEscape(b, i); err != nil {
				return 0, err
			}
		default:
			return 0, fail(i, "control character in string")
		}
	}
}

// skipEscape validates the escape sequence at b[i] and returns the index
// behind it.
func skipEscape(b []byte, i int) (end int, err error) {
	if i+1 >= len(b) {
		return 0, fail(len(b), "string is not closed")
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		if i+6 > len(b) || hex4(b[i+2:]) < 0 {
			return 0, fail(i, `\u needs four hexadecimal digits`)
		}
		high := hex4(b[i+2:])
		if !utf16.IsSurrogate(high) {
			return i + 6, nil
		}
		if i+12 <= len(b) && b[i+6] == '\\' && b[i+7] == 'u' && utf16.DecodeRune(high, hex4(b[i+8:])) != utf8.RuneError {
			return i + 12, nil
		}
		return 0, fail(i, "half of a surrogate pair")
	}
	return 0, fail(i, "unknown escape in string")
}

// invalidAt returns the index of the first byte of b that is not UTF-8.
func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// hex4 returns the number written in the first four bytes of b, -1 when they
// are not hexadecimal digits.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// unescapeAt decodes the valid escape sequence at text[i] and returns the rune
// and the index behind it. Half a surrogate pair becomes U+FFFD, as in
// encoding/json, and so does a sequence that the text breaks off.
func unescapeAt(text []byte, i int) (r rune, end int) {
	if i+1 == len(text) || text[i+1] == 'u' && i+6 > len(text) {
		return utf8.RuneError, len(text)
	}
	switch c := text[i+1]; c {
	case 'b':
		return '\b', i + 2
	case 'f':
		return '\f', i + 2
	case 'n':
		return '\n', i + 2
	case 'r':
		return '\r', i + 2
	case 't':
		return '\t', i + 2
	case 'u':
		r, i = hex4(text[i+2:]), i+6
		if !utf16.IsSurrogate(r) {
			return r, i
		}
		if i+6 <= len(text) && text[i] == '\\' && text[i+1] == 'u' {
			if pair := utf16.DecodeRune(r, hex4(text[i+2:])); pair != utf8.RuneError {
				return pair, i + 6
			}
		}
		return utf8.RuneError, i
	default: // quote, backslash, slash
		return rune(c), i + 2
	}
}

// unescape returns a decoded copy of the inside of a valid string.
func unescape(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			out = append(out, text[i])
			i++
			continue
		}
		var r rune
		r, i = unescapeAt(text, i)
		out = utf8.AppendRune(out, r)
	}
	return out
}

// AppendQuote appends s to dst as a JSON string. Bytes that are not UTF-8
// become U+FFFD.
func AppendQuote(dst []byte, s string) []byte {
	quoted, _ := Marshal(s) // no error: a text always encodes
	return append(dst, quoted...)
}

// Marshal is [json.Marshal], but leaves <, > and & readable.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
