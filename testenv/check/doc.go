// Package check holds the promises of the whole system as code: a [Checker] reads the history of a pool, event by event,
// and names each promise that was broken and the step at which it was.
//
// Whoever can see what happens feeds it: a simulator, fake engines that record their own starts and ends, clients that
// record what they asked and got, samples of a living host ([View]). The checker believes nobody's account of another:
// an engine lives from its Spawn to its Exit, a request is open from its Enter to its End, whatever a runner or Redis says
// of them. Events must come in the order in which they happened.
//
// [Invariants] lists the promises; the numbers are those of infra/docs/rules.md. What a dead gateway wanted
// (9) is told as 11, and which victim goes when (5) shows in 6 and 7.
//
// Some hold only in quiet times (a partition may well cost a second copy). Disturbed events tell the checker how long to
// suspend those, Mended ones that what was wrong is over; the others are never suspended. [Checker.Judged] counts the steps
// in which each was looked at and could have been broken, so that a run shows what it has tested.
package check
