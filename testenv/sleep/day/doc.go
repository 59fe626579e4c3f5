// Package day runs a pool of hosts for a day of virtual time: 20 hosts, 50 models, about a request a second. Every decision
// is infra/policy's, as gateways, runners and the warmer make it; time, machines, engines and requests are played. The
// invariants of the reliability requirements are checked after every event.
//
// TestDay compares the ways to choose victims. TestScripts mirrors a shorter run, step by step, into a real Redis with the
// real scripts under the same virtual clock, and compares what they hold with what the simulation holds.
//
// REVEILLE_DAY_SEEDS is how many days are run for each way, 2 when it is not set; REVEILLE_DAY_HOURS how many hours of each
// are mirrored, 3 when it is not set.
package day
