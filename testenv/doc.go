// Package testenv gives tests and local runs the real things they need: a private
// redis-server, the pinned engine and its models, the stand-in engine, programs of this
// module built once, and a TCP relay that misbehaves on purpose.
//
// Helpers take a testing.TB, clean up after themselves when the test ends, and fail the
// test with one line that says what is missing and how to get it; they never skip.
// They listen on loopback only and find the module by its go.mod, so they work from any
// package's folder. All are safe for use by parallel tests.
package testenv
