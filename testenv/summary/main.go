// Command summary reads `go test -json` on stdin and prints what a person wants of it: a
// line per package as it ends, then the output of failed tests, the slowest tests, the
// skipped ones with their reasons, and as the last line "N passed, N failed, N skipped".
//
// Tests that have subtests are not counted themselves. A package that fails without a
// failing test (it does not build, or its TestMain complains) counts as one failure. The
// exit status is 1 if anything failed or nothing was run.
package main

import (
	"fmt"
	"os"
)

func main() {
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	if !r.finish() {
		os.Exit(1)
	}
}
