package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// stream joins events into what `go test -json` writes.
func stream(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		again    string   // package that passed when it was run again
		want     []string // in the output
		not      []string
		last     string
		ok       bool
	}{{
		name: "passes are counted without parents",
		in: stream(
			`{"Action":"run","Package":"p","Test":"A"}`,
			`{"Action":"run","Package":"p","Test":"A/one"}`,
			`{"Action":"output","Package":"p","Test":"A/one","Output":"quiet\n"}`,
			`{"Action":"pass","Package":"p","Test":"A/one","Elapsed":2.5}`,
			`{"Action":"pass","Package":"p","Test":"A","Elapsed":2.5}`,
			`{"Action":"pass","Package":"p","Elapsed":2.6}`),
		want: []string{"ok       2.60s  p", "slowest:", "2.50s  p A/one"},
		not:  []string{"quiet", "p A\n"},
		last: "1 passed, 0 failed, 0 skipped", ok: true,
	}, {
		name: "a failure shows its output",
		in: stream(
			`{"Action":"run","Package":"p","Test":"A"}`,
			`{"Action":"output","Package":"p","Test":"A","Output":"got 1, want 2\n"}`,
			`{"Action":"fail","Package":"p","Test":"A"}`,
			`{"Action":"fail","Package":"p"}`),
		want: []string{"--- FAILED p A\ngot 1, want 2"},
		last: "0 passed, 1 failed, 0 skipped",
	}, {
		name: "a parent that fails by itself counts",
		in: stream(
			`{"Action":"run","Package":"p","Test":"A"}`,
			`{"Action":"run","Package":"p","Test":"A/one"}`,
			`{"Action":"pass","Package":"p","Test":"A/one"}`,
			`{"Action":"fail","Package":"p","Test":"A"}`,
			`{"Action":"fail","Package":"p"}`),
		last: "1 passed, 1 failed, 0 skipped",
	}, {
		name: "a skip says why",
		in: stream(
			`{"Action":"pass","Package":"p","Test":"B"}`,
			`{"Action":"output","Package":"p","Test":"A","Output":"=== RUN A\n"}`,
			`{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:3: no GPU\n"}`,
			`{"Action":"output","Package":"p","Test":"A","Output":"--- SKIP: A\n"}`,
			`{"Action":"skip","Package":"p","Test":"A"}`),
		want: []string{"p A: a_test.go:3: no GPU\n"},
		last: "1 passed, 0 failed, 1 skipped", ok: true,
	}, {
		name: "a build failure counts once and is shown",
		in: stream(
			`{"Action":"build-output","ImportPath":"p [p.test]","Output":"x.go:1: undefined: y\n"}`,
			`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`),
		want: []string{"--- FAILED p\nx.go:1: undefined: y"},
		last: "0 passed, 1 failed, 0 skipped",
	}, {
		name: "a crash shows the test that never ended",
		in: stream(
			`{"Action":"run","Package":"p","Test":"A"}`,
			`{"Action":"output","Package":"p","Test":"A","Output":"panic: boom\n"}`,
			`{"Action":"fail","Package":"p"}`),
		want: []string{"panic: boom"},
		last: "0 passed, 1 failed, 0 skipped",
	}, {
		name:  "what passed when it was run again is shown and no failure",
		again: "p",
		in: stream(
			`{"Action":"pass","Package":"p","Test":"A"}`,
			`{"Action":"output","Package":"p","Test":"B","Output":"too late\n"}`,
			`{"Action":"fail","Package":"p","Test":"B"}`,
			`{"Action":"fail","Package":"p"}`),
		want: []string{"--- FLAKY p B\ntoo late"},
		not:  []string{"FAILED"},
		last: "1 passed, 0 failed, 0 skipped, 1 flaky", ok: true,
	}, {
		name:  "a package that failed for no test, too",
		again: "p",
		in: stream(
			`{"Action":"pass","Package":"p","Test":"A"}`,
			`{"Action":"output","Package":"p","Output":"goleak: found a goroutine\n"}`,
			`{"Action":"fail","Package":"p"}`),
		want: []string{"--- FLAKY p\ngoleak: found"},
		last: "1 passed, 0 failed, 0 skipped, 1 flaky", ok: true,
	}, {
		name: "a package that never ended failed",
		in: stream(
			`{"Action":"start","Package":"p"}`,
			`{"Action":"run","Package":"p","Test":"A"}`,
			`{"Action":"output","Package":"p","Test":"A","Output":"on and on\n"}`),
		want: []string{"--- FAILED p: its tests never ended\non and on"},
		last: "0 passed, 1 failed, 0 skipped",
	}, {
		name: "what is no event is passed on, and nothing run is no success",
		in:   "go: cannot find module\n",
		want: []string{"go: cannot find module"},
		last: "0 passed, 0 failed, 0 skipped",
	}} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tc.in)); err != nil {
				t.Fatal(err)
			}
			if tc.again != "" {
				r.flaky[tc.again] = true
			}
			ok := r.finish()
			got := out.String()
			if ok != tc.ok || !strings.HasSuffix(got, "\n"+tc.last+"\n") {
				t.Errorf("ok = %v, want %v; output:\n%s", ok, tc.ok, got)
			}
			for _, w := range tc.want {
				if !strings.Contains(got, w) {
					t.Errorf("missing %q in:\n%s", w, got)
				}
			}
			for _, w := range tc.not {
				if strings.Contains(got, w) {
					t.Errorf("unwanted %q in:\n%s", w, got)
				}
			}
		})
	}
}

func TestFailed(t *testing.T) {
	failed := []string{
		`{"Action":"run","Package":"p","Test":"B"}`,
		`{"Action":"run","Package":"p","Test":"B/one"}`,
		`{"Action":"fail","Package":"p","Test":"B/one"}`,
		`{"Action":"fail","Package":"p","Test":"B"}`,
		`{"Action":"fail","Package":"p","Test":"A"}`,
		`{"Action":"pass","Package":"p","Test":"C"}`,
		`{"Action":"fail","Package":"q","Test":"D"}`,
	}
	for _, tc := range []struct {
		name string
		more string
		want []string
	}{
		{name: "whole tests, each once", want: []string{"A", "B"}},
		{name: "none where one did not end", more: `{"Action":"output","Package":"p","Test":"E","Output":"panic: boom\n"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReport(io.Discard)
			if err := r.read(strings.NewReader(stream(append(failed, tc.more)...))); err != nil {
				t.Fatal(err)
			}
			if got := r.failed("p"); !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
