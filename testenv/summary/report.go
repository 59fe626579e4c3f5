package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output, in place of Package
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string // import path whose build failed, in a package's fail event
}

// name identifies a test over all packages; Test is empty for a package as a whole.
type name struct{ Package, Test string }

func (n name) String() string {
	if n.Test == "" {
		return n.Package
	}
	return n.Package + " " + n.Test
}

// result is how one test ended.
type result struct {
	name
	action  string // pass, fail or skip
	elapsed float64
}

// slowest is how many tests the list of slow ones names, at most; tests faster than
// slowSeconds are not worth a line.
const (
	slowest     = 10
	slowSeconds = 1.0
)

// report gathers events. It is not safe for concurrent use.
type report struct {
	out     io.Writer
	output  map[name]*strings.Builder
	build   map[string]*strings.Builder // build output by import path
	parents map[name]bool               // tests that have subtests
	results []result
	open    map[string]bool // packages that began and have not ended
	broken  []event         // failed packages
	flaky   map[string]bool // failed packages that passed when they were run again
}

func newReport(out io.Writer) *report {
	return &report{
		out: out, output: map[name]*strings.Builder{}, build: map[string]*strings.Builder{}, parents: map[name]bool{},
		open: map[string]bool{}, flaky: map[string]bool{},
	}
}

// read takes all events. Lines that are no JSON, such as a tool's own complaint, are
// passed through.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				fmt.Fprint(r.out, string(line))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (r *report) add(e event) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		text(r.build, e.ImportPath).WriteString(e.Output)
	case "output":
		text(r.output, n).WriteString(e.Output)
	case "start":
		r.open[e.Package] = true
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
			r.parents[name{e.Package, e.Test[:i]}] = true
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.addPackage(e)
		} else {
			r.results = append(r.results, result{n, e.Action, e.Elapsed})
		}
	}
}

func (r *report) addPackage(e event) {
	delete(r.open, e.Package)
	switch e.Action {
	case "fail":
		r.broken = append(r.broken, e)
		fmt.Fprintf(r.out, "FAIL  %7.2fs  %s\n", e.Elapsed, e.Package)
	case "pass":
		fmt.Fprintf(r.out, "ok    %7.2fs  %s\n", e.Elapsed, e.Package)
	}
}

// finish prints the summary and reports whether all is well.
func (r *report) finish() bool {
	counts := map[string]int{}
	var leaves []result
	blamed := map[string]bool{} // packages with a failed test
	for _, res := range r.results {
		if res.action == "fail" {
			blamed[res.Package] = true
			r.block(r.verdict(res.Package)+" "+res.String(), r.output[res.name])
		}
		// A parent that fails while all its subtests pass failed by itself.
		if r.parents[res.name] && (res.action != "fail" || r.childFailed(res.name)) {
			continue
		}
		if res.action == "fail" && r.flaky[res.Package] {
			counts["flaky"]++
		} else {
			counts[res.action]++
		}
		leaves = append(leaves, res)
	}
	for _, e := range r.broken {
		if blamed[e.Package] {
			continue
		}
		if r.flaky[e.Package] {
			counts["flaky"]++
		} else {
			counts["fail"]++
		}
		r.block(r.verdict(e.Package)+" "+e.Package, r.build[e.FailedBuild], r.output[name{e.Package, ""}], r.unfinished(e.Package))
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.open)) {
		counts["fail"]++
		r.block("FAILED "+pkg+": its tests never ended", r.unfinished(pkg))
	}
	r.slow(leaves)
	r.skipped(leaves)
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped", counts["pass"], counts["fail"], counts["skip"])
	if n := counts["flaky"]; n > 0 {
		fmt.Fprintf(r.out, ", %d flaky", n)
	}
	fmt.Fprintln(r.out)
	return counts["fail"] == 0 && counts["pass"] > 0
}

// failed are the top-level tests of a package that failed. It is nothing where a test did not end, since that may be the
// one to blame.
func (r *report) failed(pkg string) []string {
	if r.unfinished(pkg).Len() > 0 {
		return nil
	}
	tests := map[string]bool{}
	for _, res := range r.results {
		if res.Package == pkg && res.action == "fail" {
			test, _, _ := strings.Cut(res.Test, "/")
			tests[test] = true
		}
	}
	return slices.Sorted(maps.Keys(tests))
}

// verdict is FLAKY for a package that passed when it was run again, FAILED for others.
func (r *report) verdict(pkg string) string {
	if r.flaky[pkg] {
		return "FLAKY"
	}
	return "FAILED"
}

func (r *report) childFailed(n name) bool {
	return slices.ContainsFunc(r.results, func(res result) bool {
		return res.Package == n.Package && res.action == "fail" && strings.HasPrefix(res.Test, n.Test+"/")
	})
}

// unfinished is the output of tests that began and never ended, as a crash leaves them.
func (r *report) unfinished(pkg string) *strings.Builder {
	ended := map[name]bool{}
	for _, res := range r.results {
		ended[res.name] = true
	}
	var all strings.Builder
	for n, out := range r.output {
		if n.Package == pkg && n.Test != "" && !ended[n] {
			all.WriteString(out.String())
		}
	}
	return &all
}

func (r *report) block(title string, texts ...*strings.Builder) {
	fmt.Fprintf(r.out, "\n--- %s\n", title)
	for _, t := range texts {
		if t != nil && t.Len() > 0 {
			fmt.Fprintln(r.out, strings.TrimRight(t.String(), "\n"))
		}
	}
}

func (r *report) slow(leaves []result) {
	slow := slices.DeleteFunc(slices.Clone(leaves), func(res result) bool { return res.elapsed < slowSeconds })
	slices.SortFunc(slow, func(a, b result) int { return cmp.Compare(b.elapsed, a.elapsed) })
	if len(slow) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\nslowest:")
	for _, res := range slow[:min(slowest, len(slow))] {
		fmt.Fprintf(r.out, "  %7.2fs  %s\n", res.elapsed, res)
	}
}

func (r *report) skipped(leaves []result) {
	first := true
	for _, res := range leaves {
		if res.action != "skip" {
			continue
		}
		if first {
			fmt.Fprintln(r.out, "\nskipped:")
			first = false
		}
		fmt.Fprintf(r.out, "  %s: %s\n", res, r.reason(res.name))
	}
}

// reason is what a test said before it was skipped.
func (r *report) reason(n name) string {
	var said []string
	if out := r.output[n]; out != nil {
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
				said = append(said, line)
			}
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

// text returns the builder of a key, new if need be.
func text[K comparable](m map[K]*strings.Builder, key K) *strings.Builder {
	if m[key] == nil {
		m[key] = &strings.Builder{}
	}
	return m[key]
}
