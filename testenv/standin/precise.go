package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late a Go timer may be: the runtime waits in whole milliseconds.
const timerSlack = 3 * time.Millisecond

// sleepPrecisely is sleep with an error of the kernel's, about a tenth of a millisecond,
// for costs that a benchmark adds up. It notices the end of ctx up to timerSlack late.
func sleepPrecisely(ctx context.Context, d time.Duration) bool {
	end := time.Now().Add(d)
	if d > timerSlack && !sleep(ctx, d-timerSlack) {
		return false
	}
	for left := time.Until(end); left > 0; left = time.Until(end) {
		wait := unix.NsecToTimespec(left.Nanoseconds())
		_ = unix.Nanosleep(&wait, nil) // interrupted: the loop sleeps the rest
	}
	return ctx.Err() == nil
}
