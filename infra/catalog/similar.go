package catalog

import (
	"cmp"
	"slices"
	"strings"
)

const (
	maxSimilar = 3 // names
	minShared  = 3 // letters and digits
)

// Similar returns the ids of up to three models that a client who asked for an unknown name may have meant, the
// likeliest first: those whose id or an alias contains the name, is contained in it, or has the same beginning. Only
// ASCII letters and digits count.
func (c *Catalog) Similar(name string) []string {
	name = letters(clip(name))
	type candidate struct {
		id    string
		score int
	}
	var all []candidate
	for _, m := range c.Models {
		best := 0
		for _, n := range m.names() {
			n = letters(n)
			score := shared(n, name)
			if strings.Contains(n, name) || strings.Contains(name, n) {
				score = min(len(n), len(name))
			}
			best = max(best, score)
		}
		if best >= minShared {
			all = append(all, candidate{m.ID, best})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
	var ids []string
	for _, a := range all[:min(len(all), maxSimilar)] {
		ids = append(ids, a.id)
	}
	return ids
}

// letters returns the letters and digits of s, the letters in lower case.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return -1
	}, fold(s))
}

// shared returns how many bytes a and b have in common at their beginning.
func shared(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
