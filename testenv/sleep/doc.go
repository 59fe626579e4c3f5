// Package sleep tests from outside how hosts sleep and wake: separate processes, real redis-servers, the stand-in engine.
// What it holds true is invariants 16 to 21 of infra/docs/rules.md: one wake for
// whoever asks, and no request lost at any step of an unload, a drain, a stop or a start.
//
// REVEILLE_SLEEP_CYCLES is how many random sleep cycles are run, 200 when it is not set.
package sleep
