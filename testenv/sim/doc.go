// Package sim runs a whole pool in one process under a virtual clock: the real scripts on an embedded Redis, the real
// gate, mirror, runner core, sweeps and power set, with engines, machines and clients that are made up and a network that can
// be cut, stalled and made to lose replies. A [Scenario] is a list of steps, drawn from a seed or read from a file; a checker
// of package check follows what happens and names the first broken promise. A failing scenario is shrunk to the steps that
// matter.
//
// # Faults and quiet times
//
// After a fault the checker suspends what holds only in quiet times, for as long as leases may take to end. So a drawn
// scenario has rounds: faults, then a step that mends everything and waits, then steps without faults, in which all promises
// are judged on what the faults left behind. TestSeeds prints in how many steps each promise was judged, and fails for one
// with too few. It always runs the same seeds. TestSizes does the same with models of many sizes on hosts of several GPUs.
//
// # How exact a replay is
//
// The steps, the times between them, the choices of every engine and client and the clock are functions of the
// scenario alone. The order of goroutines that are ready at the same instant of virtual time is the Go scheduler's. Most
// seeds give the same history each time under GOMAXPROCS=1, none is guaranteed to: a scenario that needs a race
// within one instant is run several times by the shrinker before it is called good.
//
// # What is left out
//
// A runner's way to Redis never waits: a stall ends its calls with a time-out at once, since a goroutine that waits for a
// mutex stops the virtual clock. What was written into the stall still arrives later, as it would from a socket. The HTTP
// side of a gateway is left out: a simulated client repeats requests after crashes by the rules of gateway/httpapi.
package sim
