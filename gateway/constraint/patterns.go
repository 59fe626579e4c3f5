package constraint

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

var (
	lookaround = regexp.MustCompile(`\(\?[^:]`)
	unicodeEsc = regexp.MustCompile(`\\u[0-9a-fA-F]{4}`)
	hexEscape  = regexp.MustCompile(`^\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})`)
)

// checkPattern accepts the patterns that llama.cpp's converter survives. The converter reads ^…$ byte by byte, loops at a closing
// bracket without an opening one, and reads what stands before a quantifier even if there is nothing. lenient also accepts
// patterns that the converter refuses or ignores.
func checkPattern(p string, lenient bool) (cost, error) {
	if len(p) > maxPattern {
		return cost{}, errors.New("it is too long")
	}
	if len(p) < 2 || p[0] != '^' || p[len(p)-1] != '$' {
		if lenient {
			return cost{}, nil // the converter does not read it
		}
		return cost{}, errors.New("it must begin with ^ and end with $")
	}
	p = p[1 : len(p)-1]
	if lookaround.MatchString(p) {
		if !lenient {
			return cost{}, errors.New("of groups that begin with (? only (?: is understood")
		}
		p = cutLookaround(p)
	}
	if err := converterForms(p, lenient); err != nil {
		return cost{}, err
	}
	// As the converter does, \u00e9 is taken as an escaped letter.
	re, err := syntax.Parse(unicodeEsc.ReplaceAllString(p, "u"), syntax.Perl)
	if err != nil {
		return cost{}, errors.New("it is no regular expression")
	}
	if _, _, err = weigh(re, 0); err != nil {
		return cost{}, err
	}
	spent := costOf(re)
	g := newGrammar()
	if err := g.read(asGrammar(p)); err != nil {
		return cost{}, err
	}
	if spent.quantifiers > 0 {
		spent.work, err = g.check(true, g.name("root").rule)
	}
	return spent, err
}

// asGrammar writes a pattern as the converter does.
func asGrammar(p string) string {
	b := []byte("root ::= ")
	for i := 0; i < len(p); {
		from := i
		switch p[i] {
		case '(':
			if i++; strings.HasPrefix(p[i:], "?:") {
				i += 2
			}
			b = append(b, " ("...)
			continue
		case ')', '|', '*', '+', '?', '.':
			i++
		case '{':
			i += strings.IndexByte(p[i:], '}') + 1
		case '[':
			for i++; p[i] != ']'; i++ {
				if p[i] == '\\' {
					i++
				}
			}
			i++
		default:
			if p[i] == '\\' {
				i++
			}
			_, n := utf8.DecodeRuneInString(p[i:])
			text := p[i : i+n]
			if i > from {
				if code := hexEscape.FindString(p[from:]); code != "" { // the engine reads it in its grammar
					n, text = len(code)-1, code
				}
			}
			i += n
			if text == `"` || text == `\` {
				text = `\` + text
			}
			b = append(append(append(b, ` "`...), text...), '"')
			continue
		}
		b = append(b, p[from:i]...)
	}
	return string(b)
}

// cutLookaround removes lookarounds as the converter does: up to the closing parenthesis, without regard to classes.
func cutLookaround(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); {
		switch {
		case p[i] == '\\' && i+1 < len(p):
			b.WriteString(p[i : i+2])
			i += 2
		case strings.HasPrefix(p[i:], "(?") && !strings.HasPrefix(p[i:], "(?:"):
			depth := 0
			for ; i < len(p); i++ {
				if p[i] == '\\' {
					i++
				} else if p[i] == '(' {
					depth++
				} else if p[i] == ')' {
					if depth--; depth == 0 {
						i++
						break
					}
				}
			}
		default:
			b.WriteByte(p[i])
			i++
		}
	}
	return b.String()
}

// converterForms checks the places where the converter and a regular
// expression parser see different things.
func converterForms(p string, lenient bool) error {
	for i := 0; i < len(p); i++ {
		switch c := p[i]; c {
		case '\\':
			if i++; i == len(p) {
				return errors.New("it ends with a backslash")
			}
			if c := p[i]; !lenient && !strings.ContainsRune(`^$.[]()|{}*+?\`, rune(c)) {
				return errors.New("of escapes only those of punctuation are understood: write [0-9] for \\d")
			}
		case '[':
			start := i
			for i++; i < len(p) && p[i] != ']'; i++ {
				if p[i] == '\\' {
					i++
				}
			}
			if i >= len(p) {
				return errors.New("a bracket is not closed")
			}
			if class := p[start+1 : i]; class == "" || class == "^" {
				return errors.New("a character class is empty; a closing bracket in it must be escaped")
			}
		case ']', '}':
			return errors.New("a closing bracket must be escaped")
		case '{':
			end := strings.IndexByte(p[i:], '}')
			if end < 0 || !counted.MatchString(p[i:i+end+1]) {
				return errors.New("a brace must be escaped, or hold counts as {2} or {2,5}")
			}
			i += end
		}
	}
	return nil
}

var counted = regexp.MustCompile(`^\{[0-9]{1,4}(,[0-9]{0,4})?\}$`)

// weigh reports whether a regular expression matches the empty text, and how
// many copies its counted repetitions make of their innermost part.
func weigh(re *syntax.Regexp, depth int) (empty bool, copies int, err error) {
	if depth > 4*maxPatternDeep {
		return false, 0, errors.New("it nests too deep")
	}
	copies = 1
	switch re.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		if re.Flags&syntax.NonGreedy != 0 {
			return false, 0, errors.New("lazy quantifiers are not understood")
		}
	}
	all := true
	some := false
	for _, sub := range re.Sub {
		e, n, err := weigh(sub, depth+1)
		if err != nil {
			return false, 0, err
		}
		all, some, copies = all && e, some || e, max(copies, n)
	}
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true, 1, nil
	case syntax.OpConcat, syntax.OpCapture:
		return all, copies, nil
	case syntax.OpAlternate:
		if len(re.Sub) > maxBranches {
			return false, 0, errors.New("it has too many alternatives")
		}
		return some, copies, nil
	case syntax.OpQuest:
		return true, copies, nil
	case syntax.OpStar, syntax.OpPlus:
		if some {
			return false, 0, errors.New("a quantifier stands behind what may be empty")
		}
		return re.Op == syntax.OpStar, copies, nil
	case syntax.OpRepeat:
		n := re.Max
		if n < 0 {
			n = re.Min
		}
		if some && n > 1 {
			return false, 0, errors.New("a quantifier stands behind what may be empty")
		}
		if copies *= max(n, 1); copies > maxRepeats {
			return false, 0, errors.New("it repeats too often")
		}
		return re.Min == 0 || some, copies, nil
	}
	return false, copies, nil
}

// costOf is the cost of a regular expression.
func costOf(re *syntax.Regexp) (c cost) {
	switch re.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		c.quantifiers++
	case syntax.OpRepeat:
		c.quantifiers++
		c.copies += max(re.Min, re.Max)
	}
	for _, sub := range re.Sub {
		part := costOf(sub)
		c.quantifiers += part.quantifiers
		c.copies = clamp(c.copies + part.copies)
	}
	return c
}
