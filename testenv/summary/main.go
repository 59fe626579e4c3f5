// Command summary reads `go test -json` on stdin and prints what a person wants of it: a
// line per package as it ends, then the output of failed tests, the slowest tests, the
// skipped ones with their reasons, and as the last line "N passed, N failed, N skipped".
//
// Tests that have subtests are not counted themselves. A package that fails without a
// failing test (it does not build, or its TestMain complains) counts as one failure. The
// exit status is 1 if anything failed or nothing was run.
//
// Tests of whole systems live in real time, and a machine that stands still for seconds
// can fail any of them. With -again N, if no more than N packages failed, the failed tests
// of each are run once more (all of them where none is known to have failed). What passes
// then has not failed but is flaky: its first output is shown all the same, and the last
// line ends in ", N flaky".
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	again := flag.Int("again", 0, "run failed packages again if they are no more than `N`")
	flag.Parse()
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	if len(r.broken) <= *again {
		for _, e := range r.broken {
			fmt.Println("again           ", e.Package)
			r.flaky[e.Package] = passes(e.Package, r.failed(e.Package))
		}
	}
	if !r.finish() {
		os.Exit(1)
	}
}

// passes runs the named tests of a package, all where none is named, and shows what they say if they fail.
func passes(pkg string, tests []string) bool {
	args := []string{"test", "-count=1", "-shuffle=on"}
	if len(tests) > 0 {
		args = append(args, "-run", "^("+strings.Join(tests, "|")+")$")
	}
	out, err := exec.Command("go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		fmt.Printf("%s\n", out)
	}
	return err == nil
}
