// Package host is the core of a runner: it owns the models of one host. It takes tickets from the host's queue in
// Redis, decides with infra/policy what to evict, and starts and stops engines. It counts the open requests of each
// model, so it never evicts a busy model by a race.
//
// Locks and goroutines:
//   - Host.mu guards the residents: state, admission, open requests, reservations. It is never held over I/O. One
//     critical section chooses a victim and closes its admission. A model that admits no new requests stays idle once
//     it is idle, so its engine can be stopped later without another check.
//   - Host.redisMu is held over every write to Redis that carries the generation, except ConfirmSleep and FailSleep, so the
//     writes of records are ordered. Each is built when it is written, so the last is correct. redisMu is taken before mu.
//   - Only the loop (Run) reads the queue and decides which ticket is next. Each load runs in its own goroutine, one at
//     a time, and starts its ticket in Redis. Unloads run concurrently with it.
//   - The goroutine that watches an engine frees its slot when the engine ends, for whatever reason. A load whose
//     engine did not start frees its own slot.
//
// While Redis is lost, the host takes no tickets; what is in progress goes on. Afterwards it registers with everything
// that it holds, which also writes what it could not write before. Rules are numbered as in infra/docs/rules.md.
package host
