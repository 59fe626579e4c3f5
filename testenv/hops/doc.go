// Package hops compares what comes through the gateway with what the engine itself answers, byte for byte, while both
// ends misbehave within HTTP: messages in pieces of any size, stalls, slow readers, connections that close early, with or
// without notice, and clients that leave.
//
// The engine of testenv/hops/engine answers by the seed that a request names, so the same case can be asked of it directly
// and through any number of hops. `make fuzz-hops CASES=100000` runs many cases; a failure names the seed of its own,
// and `-args -first=SEED -cases=1` repeats it.
package hops
