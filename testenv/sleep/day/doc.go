// Package day runs a pool of hosts for a day of virtual time: 20 hosts of 2 slots, half of them at a price of 0.5 an hour and
// half at 2, and 50 models that load in 5 s + exponential of 25 s. Of about a request a second half is Poisson with Zipf
// popularity, half comes in bursts, by day more than by night. Every decision is infra/policy's, as gateways, runners and
// the warmer make it; time, machines, engines and requests are played.
//
// TestDay compares the ways to choose victims. TestScripts plays the same days with each change made by the real scripts in
// a real Redis under the virtual clock, and compares what Redis holds with what the simulation holds: after each call the
// hosts that it changed, and every five minutes of the day the whole pool. Nothing that Redis holds goes back into the
// simulation, so both give the same table.
//
// After every event the hosts that it changed are held to these invariants of the reliability requirements, by number: slots
// and NPU (1, 2), nothing busy or reserved is stopped (3, 8), one load at a time on a host (4), of a model in the pool (10),
// victims by last use (6), an outcome for every request (13), no idle slot beside a queue (14), at most eight overtake (15),
// fences and tokens that rise (16, 17), sleep without work and a wake for what comes during it (19, 20), idle times (21),
// operations that are repeated (26). What comes while a machine stops has a test of its own, as no day has such a moment.
// 5 and 7 hold by construction: the same event chooses victims and stops them. Faults, departures and failed loads (9, 11, 12,
// 18, 22 to 25) are the simulator's, in testenv/sim.
//
// The mean day of seeds 0 to 19 ± its standard deviation; all 40 days with Redis take 12 minutes of a processor and violate
// nothing:
//
//	evict  requests      host hours   price        cold starts  evictions    wakes       mean wait    p99 wait
//	lru    86093 ± 1432  243.9 ± 8.0  298.2 ± 5.3  12245 ± 571  12029 ± 578  12.6 ± 0.8  26.2 ± 3.3 s 107.7 ± 25.2 s
//	cost   86093 ± 1432  239.2 ± 7.9  296.6 ± 8.4  12060 ± 680  11890 ± 686  12.3 ± 0.7  23.4 ± 3.0 s 102.4 ± 21.2 s
//
// So cost waits 11 % less for 2 % fewer host hours and loads; the differences in hours, price and loads are within the
// spread of days.
//
// REVEILLE_DAY_SEEDS is how many days are run for each way, 2 when it is not set; REVEILLE_DAY_HOURS how many hours of each
// are played with Redis, 12 when it is not set. `make days` plays 20 whole days of each way.
package day
