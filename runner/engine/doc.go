// Package engine runs inference engines as child processes. A [Spec] says what to run and becomes an argument vector
// without any I/O; a [Process] is one running engine, owned by one goroutine that alone signals and reaps it.
//
// Promises:
//   - On Linux no engine outlives its runner. Engines are forked from one thread that lives as long as the runner and
//     die with it by parent-death signal. At the next start, [Marker.KillLeftovers] kills processes that engines had
//     started.
//   - When [Process.Done] is closed, the process has been reaped and its process group killed. Processes of the group
//     that do not exit within 5 s are logged.
//   - The exit of an engine is noticed immediately, and [Process.Err] has its exit status and the last lines of its
//     log.
//   - No engine is started on a model file that is missing, damaged or truncated.
//   - Every wait is bounded: a load by the recipe's timeouts, a stop by its grace period and a few seconds.
package engine
