// Package linearizability lets several gateways, runners and sweeps make the real calls of infra/state at once, on a real
// redis-server, records when each call began and returned and what it was told, and has porcupine look for one order of
// the calls in which a pool that takes one call at a time would have given the same responses.
//
// # What is promised
//
// The pool that takes one call at a time is type pool. It has the slots of one host, its queue of tickets, the duty to
// wake it and its sleep. Each operation has its call to the real store and what it does to that pool side by side. Beyond
// the responses it holds true:
//
//   - Fences (ticket ids, generations, tokens of wake duties and sleeps) and revisions rise, above every one that anybody
//     was told before, and fences are never behind the scripts' clock. One that was given out again, or ended, is refused.
//   - The host never has more records than slots.
//
// A call whose reply was lost may have happened at any moment after it began, or not at all. One that Redis refused, or
// that never left, did not happen.
//
// # Failover
//
// Replication is asynchronous, so a replica that is promoted holds what the primary held some writes ago. The promise is
// that, and no more: a suffix of the acknowledged writes is lost, nothing from before the last moment at which the
// replica was known to be in step, and no write is lost whose successor stays. The revision that the replica has tells
// which suffix it was. From there on the pool is again one that takes one call at a time. Fences and revisions rise above
// those that were lost too, so whoever holds one of the lost is refused. The records may be older than what the runner
// holds, and the limit of slots is promised again from its next registration on: until then it is the runner that counts.
//
// # What is left out
//
// Unloads, tickets of their own, touches, the catalog, settings, and models that several hosts could hold: testenv/sim
// has random histories of these. The limit of slots, the victims and what is loaded are a runner's
// to decide; the runners here decide at random within the limit.
//
// # Pools and time
//
// Each history has several pools on one server, judged one by one: a pool's keys, revision and fences are its own. The
// scripts' clock is an argument that the test moves, so that leases end within a history. Under a failover it is Redis'
// own, since a clock that is read before a call is sent can be behind one of before the failover; such a history is
// shorter than any lease, or it is made again.
//
// # More of it
//
//	go test ./testenv/linearizability -count=1 -timeout 0 -v -args -history.rounds=200
//
// makes that many histories of each kind. -history.calls is the length of one, per pool; -history.seed chooses the
// clients' choices, though not the order in which they meet. A history that has no such order is written as porcupine's
// page to a folder below -history.out, by default the temporary one, whose path the failure names.
package linearizability
