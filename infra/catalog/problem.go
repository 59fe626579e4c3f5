package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Problem is one mistake in a catalogue, or one warning about it.
type Problem struct {
	File      string // as given to Load or Parse; empty when it came from no file
	Line, Col int    // from 1; 0 without a position in a file
	Path      string // where in the structure: "models.gemma.device"
	Text      string // what is wrong
	Hint      string // what to do about it; may be empty
}

// String is "file:line:col: path: text (hint)", without the parts that are empty.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", p.Line, p.Col)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	if p.Hint != "" {
		b.WriteString(" (" + p.Hint + ")")
	}
	return b.String()
}

// Problems is everything wrong with a catalogue, in the order of the file. As an error it is never empty.
type Problems []Problem

// Error has one line for each problem.
func (ps Problems) Error() string { return lines(ps) }

// Warnings are remarks about a catalogue that is still usable, in the order of the file.
type Warnings []Problem

// String has one line for each warning.
func (ws Warnings) String() string { return lines(ws) }

func lines(ps []Problem) string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.String()
	}
	return strings.Join(out, "\n")
}

func sortProblems(ps []Problem) {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col), cmp.Compare(a.Path, b.Path))
	})
}

// didYouMean suggests the candidate nearest to what was written, or lists the candidates if none is near and they are
// few.
func didYouMean(got string, candidates []string) string {
	best, dist := "", 1+max(1, min(len(got), 24)/3)
	if len(got) <= 64 {
		for _, c := range candidates {
			if d := distance(strings.ToLower(got), strings.ToLower(c)); d < dist {
				best, dist = c, d
			}
		}
	}
	switch {
	case best != "":
		return "did you mean " + best + "?"
	case len(candidates) > 0 && len(candidates) <= 24:
		return "want one of " + strings.Join(candidates, ", ")
	}
	return ""
}

// distance returns the number of single-byte edits between a and b; an exchange of two neighbours counts as one.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
