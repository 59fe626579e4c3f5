// Package scheduling chooses the runner for a request, and holds the request until the model is loaded there.
//
// A [Gate] serves warm requests from a mirror of the pool ([Gate.EndpointFor]): no I/O, no lock that another request
// could hold for long and, but for the first request after a change of the pool, no allocation. A request that finds no
// endpoint enters the gate ([Gate.Enter]) and gets a [Waiter]. All waiters of one model form a group. A group attaches
// to one ticket in the state store, renews it while somebody waits, and delivers its outcome to every waiter in the
// order of arrival. The gate also wakes a host when the store gave this gateway its power lease, and makes the tickets
// of management calls ([Gate.Load], [Gate.Unload]).
//
// Every waiter gets exactly one outcome, at the latest when its own time is over. Errors are [*api.Error], so handlers
// send them unchanged. The one exception is [ErrLeft], which has no recipient.
//
// DESIGN.md in this folder describes how the parts fit together and which races they survive.
package scheduling
