package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"reveille/testenv/check"
)

// leastJudged is in how many steps of 100 seeds every promise must have been judged: one for quiet times after faults.
const leastJudged = 10

// table sums up the runs of many seeds.
type table struct {
	seeds, requests, spawns int
	virtual                 time.Duration
	judged                  map[int]check.Judged
	in                      map[int]int // seeds in which a promise was judged after faults
}

func newTable() *table { return &table{judged: map[int]check.Judged{}, in: map[int]int{}} }

func (s *table) add(r Report) {
	s.seeds, s.requests, s.spawns, s.virtual = s.seeds+1, s.requests+r.Requests, s.spawns+r.Spawns, s.virtual+r.Virtual
	for n, j := range r.Judged {
		sum := s.judged[n]
		s.judged[n] = check.Judged{Steps: sum.Steps + j.Steps, After: sum.After + j.After}
		if j.After > 0 {
			s.in[n]++
		}
	}
}

// String is the table of judged steps.
func (s *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, %d requests, %d spawns, %v virtual\n", s.seeds, s.requests, s.spawns, s.virtual)
	fmt.Fprintf(&b, "%9s %-6s %12s %18s %8s\n", "invariant", "holds", "steps judged", "quiet after faults", "in seeds")
	for _, v := range check.Invariants {
		holds := "always"
		if v.Quiet {
			holds = "quiet"
		}
		j := s.judged[v.Number]
		fmt.Fprintf(&b, "%9d %-6s %12d %18d %8d  %s\n", v.Number, holds, j.Steps, j.After, s.in[v.Number], v.Text)
	}
	return b.String()
}

// judge fails the test for promises that were hardly judged. Few seeds prove nothing either way.
func (s *table) judge(t *testing.T) {
	t.Helper()
	if s.seeds < 100 {
		return
	}
	for _, v := range check.Invariants {
		if v.Number == 31 {
			continue // only engines of models with copies take a limited number of requests: TestCopies judges it
		}
		got := s.judged[v.Number].Steps
		if v.Quiet {
			got = s.judged[v.Number].After
		}
		if least := s.seeds * leastJudged / 100; got < least {
			t.Errorf("invariant %d (%s) was judged in %d steps, want %d", v.Number, v.Text, got, least)
		}
	}
}
