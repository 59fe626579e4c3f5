// Package host is the core of a runner: it owns the models of one host. It takes tickets from the host's queue in Redis,
// decides with infra/policy what makes room, starts and stops engines, and counts the open requests of each model,
// which makes it the one place where busy protection cannot be raced.
//
// Who may do what:
//   - Host.mu guards the residents: state, admission, open requests, reservations. It is never held over I/O. Choosing a
//     victim and closing its admission happen in one hold of it, and so do the last look at a model's open requests and
//     the bar to new ones before its engine is stopped.
//   - Host.redisMu is held over every write to Redis that carries the generation, so writes have one order and a record is
//     made from the residents at the time of writing: the last write always tells the truth. redisMu is taken before mu.
//   - The loop (Run) alone reads the queue and begins tickets. A load runs in a goroutine of its own, one at a time; an
//     unload runs beside it.
//   - An engine's slot is freed in one place, by the goroutine that watches for its end, whoever or whatever ended it.
//
// Redis away: nothing is started or stopped because of it; what could not be written is written by registering anew,
// with everything held, once it is back.
package host
