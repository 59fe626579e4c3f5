// Package host is the core of a runner: it owns the models of one host. It takes tickets from the host's queue in
// Redis, decides with infra/policy what to evict, and starts and stops engines. It counts the open requests of each
// model, so it never evicts a busy model by a race.
//
// Locks and goroutines:
//   - Host.mu guards the residents: state, admission, open requests, reservations. It is never held over I/O. One
//     critical section chooses a victim and closes its admission; one checks for the last time that a model has no open
//     requests and refuses new ones, before its engine is stopped.
//   - Host.redisMu is held over every write to Redis that carries the generation, so writes are ordered. A record is
//     built from the residents when it is written, so the last write is always correct. redisMu is taken before mu.
//   - Only the loop (Run) reads the queue and decides which ticket is next. Each load runs in its own goroutine, one at
//     a time, and starts its ticket in Redis. Unloads run concurrently with it.
//   - The goroutine that watches an engine frees its slot when the engine ends, for whatever reason. A load whose
//     engine did not start frees its own slot.
//
// A loss of Redis makes the host neither start nor stop anything. Once Redis is back, the host registers again with
// everything it holds, which also writes what it could not write before.
package host
