// Package scheduling is everything between "the model is known" and "here is the runner to send to".
//
// A [Gate] answers warm requests from a mirror of the pool ([Gate.Endpoint]): no I/O, no allocation, no lock that another
// request could hold for long. A request that finds no endpoint enters the gate ([Gate.Enter]) and gets a [Waiter]. All
// waiters of one model form a group; a group attaches to one ticket in the state store, keeps it alive while somebody
// waits, and hands its outcome to every waiter in the order of arrival. The gate also wakes a host
// when the store gave this gateway its power lease, and makes the tickets of management calls ([Gate.Load], [Gate.Unload]).
//
// Every waiter gets exactly one outcome, at the latest when its own time is over. Errors are [*api.Error] rows of the
// error table, so a handler sends them as they are; [ErrLeft] is the one exception, and nobody is left to send it to.
//
// DESIGN.md in this folder tells how the parts fit and which races they survive.
package scheduling
