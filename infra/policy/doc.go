// Package policy makes every scheduling decision of Reveille in pure functions: where a model is placed, which models
// are evicted for it, when a model or a host is idle. A function takes a snapshot and, where time matters, the current
// time, and returns a decision with its reason. The package does no I/O, does not log, reads no clock, starts no goroutine
// and imports only the standard library. All functions are safe for concurrent use as long as their snapshot does not
// change.
//
// Gateways commit placements through infra/state, a runner carries out admissions on its own host, and the warmer
// carries out idle decisions. infra/docs/rules.md defines the rules that comments cite by number.
package policy
