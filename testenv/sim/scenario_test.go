package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"reveille/testenv/check"
)

// TestScenarios replays the files of testdata: faults of other systems, named by their issue, and histories in which this
// one once broke a promise. The section "scenario" is what Parse reads. The section "expect", which may be missing, holds
// lines of a count and the number it must have: an outcome, "spawns", "refused", "power-off" or "forgotten".
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, expect := readFile(t, raw)
			for range 5 { // goroutines that are ready at one instant run in any order
				r := Run(t, s)
				for _, v := range r.Violations {
					t.Error(v)
				}
				if got := counts(r, expect); got != expectation(expect) {
					t.Errorf("got %s, want %s", got, expectation(expect))
				}
				if t.Failed() {
					t.Log(historyOf(r))
					return
				}
			}
		})
	}
}

// count is one line of a section "expect".
type count struct {
	name string
	n    int
}

func readFile(t *testing.T, raw []byte) (Scenario, []count) {
	t.Helper()
	var s Scenario
	var expect []count
	for _, f := range txtar.Parse(raw).Files {
		switch f.Name {
		case "scenario":
			var err error
			if s, err = Parse(string(f.Data)); err != nil {
				t.Fatal(err)
			}
		case "expect":
			for line := range strings.Lines(string(f.Data)) {
				var c count
				if _, err := fmt.Sscan(line, &c.name, &c.n); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				expect = append(expect, c)
			}
		default:
			t.Fatalf("unknown section %q", f.Name)
		}
	}
	return s, expect
}

func expectation(list []count) string { return fmt.Sprint(list) }

// counts is what a run shows of what is expected. The requests that look whether the pool still works count as well.
func counts(r Report, list []count) string {
	kinds := map[check.Kind]int{}
	for _, e := range r.History {
		if e.Kind == check.Refused || e.Step <= r.Last {
			kinds[e.Kind]++
		}
	}
	var got []count
	for _, c := range list {
		switch c.name {
		case "spawns":
			c.n = r.SpawnsBefore
		case "refused", "power-off", "forgotten":
			c.n = kinds[check.Kind(c.name)]
		default:
			c.n = r.Before[c.name]
		}
		got = append(got, c)
	}
	return fmt.Sprint(got)
}

func historyOf(r Report) string {
	var b strings.Builder
	for _, e := range r.History {
		if e.Kind != check.Sample && (e.Kind != check.Keys || e.Text != "") {
			fmt.Fprintln(&b, e)
		}
	}
	return b.String()
}

// A scenario survives being written and read.
func TestScenarioText(t *testing.T) {
	for seed := range uint64(50) {
		s := Generate(seed, 100)
		got, err := Parse(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != s.String() {
			t.Fatalf("seed %d:\n%s\nis read as\n%s", seed, s, got)
		}
	}
	for _, bad := range []string{"seed x", "gateways many", "request model=z", "request for=soon", "request who=me", "jump after=1s"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// Shrinking finds the two steps that matter, and keeps the time between them.
func TestShrink(t *testing.T) {
	s := Generate(7, 120)
	s.Steps[20] = Step{Op: Flush}
	s.Steps[70] = Step{Op: Clock, For: 1}
	broken := func(s Scenario) bool {
		flushed := false
		for _, st := range s.Steps {
			flushed = flushed || st.Op == Flush
			if flushed && st.Op == Clock && st.For == 1 {
				return true
			}
		}
		return false
	}
	if got := Shrink(s, 2000, broken); len(got.Steps) != 2 || !broken(got) {
		t.Errorf("%d steps are left:\n%s", len(got.Steps), got)
	}
}
