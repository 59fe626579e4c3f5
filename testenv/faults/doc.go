// Package faults holds the whole system to its responses under each fault: status, code, advice on retries, form, and
// that it comes in time. Processes are killed and stopped, Redis is killed, frozen, slowed down, filled up and failed
// over, replies are lost, engines hang, crash and talk nonsense, clients come by the thousand and go away.
//
// Tests carry the number of the fault's row in the reliability requirements. What testenv/system shows already is not
// repeated here: rows 4 (FLUSHALL), 18 to 20 (clients that leave), 29 (file missing), 30 (model too large).
//
// Nothing is asserted of a wall clock that a machine with too much to do could not keep: these tests wait far longer
// than is promised. The promised times are asserted in virtual time or on given moments,
//
//	rows 1, 2    infra/state TestSilentRedisByTheClock, gateway/scheduling TestStoreAway
//	rows 3, 4    gateway/scheduling TestLoadsDoNotWaitForALostRunner
//	row 8        infra/state TestLostHost
//	row 9        testenv/sim: the record of a dead process is gone within 2 s
//	row 12       runner/httpapi TestThreeBadRepliesInAMinuteAreTooMany
//	rows 14, 15  infra/state TestWaiterLease
//	row 17       infra/relay TestUnreachableByTheClock
//	row 22       infra/policy TestNextStartsTheFirstPossibleTicket
//	row 24       gateway/scheduling TestNoCapacityIsRetriedUntilTheDeadline
//
// FAULTS_HERD is the number of first requests of row 21.
package faults
