// Package load measures the whole system from outside: real processes, real sockets, a client that keeps a number of
// connections busy. Its benchmarks print the figures of the README's performance section; nothing here asserts a time.
//
//	BenchmarkWarm   what both hops add to a warm request, over the stand-in engine asked directly
//	BenchmarkStream the same for a stream of 64 chunks
//	BenchmarkCold   a request for a cold model until its first byte, over spawning the real engine by hand
//	BenchmarkSwap   the same when another model has to go first
package load
