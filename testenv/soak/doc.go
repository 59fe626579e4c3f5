// Package soak lets a whole pool run under mixed traffic while one of its processes is killed every half minute: a
// gateway, the runner, an engine, Redis. It holds true that every request has an outcome, that a
// refusal or a cut follows a kill that explains it, that no engine dies of itself or outlives its runner, that no open
// request is counted for ever, and that memory stays flat.
//
// It runs with `make soak MINUTES=20`, and not among the other tests, for it takes as long as it is told to.
package soak
