// Package check holds the promises of the whole system as code: a [Checker] reads the history of a pool, event by event,
// and names each promise that was broken and the step at which it was.
//
// Whoever can see what happens feeds it: a simulator, fake engines that record their own starts and ends, clients that
// record what they asked and got, samples of a living host ([View]). The checker believes nobody's account of another:
// an engine lives from its Spawn to its Exit, a request is open from its Enter to its End, whatever a runner or Redis says
// of them. Events must come in the order in which they happened.
//
// The promises have the numbers of the reliability requirements:
//
//	 1 models of one type on a host never exceed its limit     12 a failed load clears the host and is tried once more
//	 2 one model uses the NPU of a host                         13 every request has one outcome, in time, with a cause
//	 3 nothing busy is stopped                                  14 what can start starts within a second
//	 4 one load at a time on a host                             15 loads keep their order, new requests do not hold them up
//	 6 the victim is the idle model unused for longest          17 tokens rise
//	 7 a victim takes no request                                18 the record of a dead process is gone within 2 s
//	 8 a model serves those it was loaded for                   21 idleness counts from the end of the last request
//	 9 what a dead gateway wanted ends within its lease (told as 11) 22 a request is counted once and given back once
//	10 one spawn for any number of requests                     23 a request reaches an engine once
//	11 a load that nobody wants is dropped                     26 a script that refuses changes nothing
//	27 models on a host never exceed its memory, and none is refused as too large that some host could hold (slot rule 9)
//
// Some hold only while nothing is wrong (a partition may well cost a second copy). Disturbed events tell the checker how
// long to suspend those; the others are never suspended.
package check
