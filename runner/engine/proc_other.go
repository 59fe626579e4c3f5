//go:build unix && !linux

package engine

import (
	"os"
	"os/exec"
	"syscall"
)

// statusBytes is not implemented on this system.
func statusBytes(int, ...string) int64 { return 0 }

// groupAlive reports whether a process is in the group.
func groupAlive(pgid int) bool { return syscall.Kill(-pgid, 0) != syscall.ESRCH }

// marked is not implemented on this system: leftovers stay.
func marked(string) []int { return nil }

// findListener is not implemented on this system: who responds on the port is taken for the engine.
func findListener(int, string, int) (found, ownedByEngine bool) { return true, true }

// awaitExit blocks until the child has exited. Without waitid it is already reaped here, so a signal to its group in
// the short time until the owner notices could reach another group of the same number. Linux has no such window.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }

// reap returns the ended child's status.
func reap(cmd *exec.Cmd) *os.ProcessState { return cmd.ProcessState }
