package batch

import "strings"

// WordPiece counts the tokens of plain ASCII texts as BERT's tokenizer would with its vocabulary. It is exact or
// reports that it cannot count a text. It is immutable and therefore safe for concurrent use.
type WordPiece struct {
	vocabulary map[string]struct{} // words start with wordStart, other pieces do not
	brackets   map[string]struct{} // entries such as [CLS], which a text may contain
	longest    int                 // length of the longest entry in bytes
}

// wordStart marks pieces that start a word (U+2581).
const wordStart = "▁"

// NewWordPiece creates a counter for a vocabulary in which U+2581 marks the pieces that start a word.
func NewWordPiece(tokens []string) *WordPiece {
	w := &WordPiece{vocabulary: make(map[string]struct{}, len(tokens)), brackets: map[string]struct{}{}}
	for _, t := range tokens {
		if plain := strings.TrimPrefix(t, wordStart); len(plain) > 2 && plain[0] == '[' && plain[len(plain)-1] == ']' {
			w.brackets[plain] = struct{}{}
		}
		w.vocabulary[t] = struct{}{}
		w.longest = max(w.longest, len(t))
	}
	return w
}

// Count returns the number of tokens in text, without those that the model adds. ok is false if text contains anything
// but printable ASCII and common spaces, or the name of a special token.
func (w *WordPiece) Count(text string) (n int, ok bool) {
	if !w.plain(text) {
		return 0, false
	}
	var buf [256]byte
	word := append(buf[:0], wordStart...)
	flush := func() {
		if len(word) > len(wordStart) {
			n += w.pieces(word)
			word = word[:len(wordStart)]
		}
	}
	for _, c := range []byte(text) {
		switch {
		case c <= ' ':
			flush()
		case c >= 'A' && c <= 'Z':
			word = append(word, c+'a'-'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			word = append(word, c)
		default: // punctuation and symbols are separate words
			flush()
			word = append(word, c)
			flush()
		}
	}
	flush()
	return n, true
}

// plain reports whether Count is exact for text.
func (w *WordPiece) plain(text string) bool {
	for i, c := range []byte(text) {
		if (c < ' ' && c != '\t' && c != '\n' && c != '\r') || c > '~' {
			return false
		}
		if c != '[' || len(w.brackets) == 0 {
			continue
		}
		rest := text[i:min(len(text), i+w.longest)]
		if end := strings.IndexByte(rest, ']'); end > 0 {
			if _, special := w.brackets[rest[:end+1]]; special {
				return false
			}
		}
	}
	return true
}

// pieces returns the number of tokens in one marked word: the longest entries from the left, or one unknown token for
// the whole word if that fails.
func (w *WordPiece) pieces(word []byte) (n int) {
	for i := 0; i < len(word); n++ {
		end := min(len(word), i+w.longest)
		for ; end > i; end-- {
			if _, known := w.vocabulary[string(word[i:end])]; known {
				break
			}
		}
		if end == i {
			return 1
		}
		i = end
	}
	return n
}
