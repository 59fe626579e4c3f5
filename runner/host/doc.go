// Package host is the core of a runner: it owns the models of one host. It takes tickets from the host's queue in
// Redis, decides with infra/policy what to evict, and starts and stops engines. It counts the open requests of each
// model, so busy protection has no race.
//
// Who may do what:
//   - Host.mu guards the residents: state, admission, open requests, reservations. It is never held over I/O. One
//     critical section chooses a victim and closes its admission; one checks for the last time that a model has no open
//     requests and bars new ones, before its engine is stopped.
//   - Host.redisMu is held over every write to Redis that carries the generation, so writes are ordered. A record is
//     made from the residents at the time of writing, so the last write is always correct. redisMu is taken before mu.
//   - Only the loop (Run) reads the queue and decides which ticket is next. Loads run in their own goroutine, one at a
//     time, which begins their ticket. Unloads run beside it.
//   - The goroutine that watches for an engine's end frees its slot, whatever ended the engine; a load whose engine did
//     not start frees its own.
//
// While Redis is unavailable, the host neither starts nor stops anything because of it. Once Redis is back, the host
// registers again with everything it holds, which writes what could not be written.
package host
