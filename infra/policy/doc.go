// Package policy holds every scheduling decision of Reveille as pure functions: where a model is placed, which models
// make room for it, when a model or a host is idle. A function takes a snapshot and, where time matters, the present
// moment, and returns a plan with its reason. Nothing here does I/O, logs, reads a clock or starts a goroutine, and the
// package imports the standard library alone; all functions are safe for concurrent use as long as nobody changes the
// snapshot they were given.
//
// Who acts on a plan: gateways commit placements through infra/state, a runner carries out admissions on its own host,
// the warmer carries out idle plans. The rules that comments name by number are in infra/docs/rules.md.
package policy
