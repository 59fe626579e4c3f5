// Package api is the gateway's contract with its clients as data and pure
// functions: the routes, the error table, the bodies each dialect gives an
// error, and the headers of a response. It holds no state, does no I/O, and
// everything in it is safe for concurrent use.
//
// One table says what each error means ([Kind]), one says what each route
// takes ([Route]). A handler returns an [*Error]; the [Dialect] of the path
// turns it into a status and a body.
package api
