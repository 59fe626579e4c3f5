// Package engine runs inference engines as child processes. A [Spec] says what to run and turns into an argument
// vector without any I/O; a [Process] is one running engine, owned by one goroutine that alone signals and reaps it.
//
// Promises:
//   - No engine outlives its runner. Engines are forked from one thread that lives as long as the runner and die with
//     it by parent-death signal; what an engine itself had started is found by [Marker.KillLeftovers] at the next start.
//   - Nothing of an engine is left when [Process.Done] is closed: its process was reaped and its process group is empty.
//   - An engine's death is noticed at once, at any moment, and [Process.Err] has its exit status and the last lines of its log.
//   - No engine is started on a model file that is missing, damaged or cut off.
//   - Every wait is bounded: a load by the recipe's times, a stop by its grace and a few seconds.
package engine
