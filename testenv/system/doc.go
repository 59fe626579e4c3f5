// Package system tests the whole system from outside: separate processes, of which only HTTP, redis-cli and the list of
// processes are looked at. What it holds true is what the README promises.
//
// Tests on the stand-in engine are about rules and faults; those on the real engine are the story of a user with other
// people's client. Every wait is for a condition and has a bound.
package system
