// Package faults holds the whole system to its answers under each fault: status, code, advice on retries, form, and that
// it comes in time. Processes are killed and stopped, Redis is killed, frozen, slowed down, filled up and failed over,
// replies are lost, engines hang, crash and talk nonsense, clients come by the thousand and go away.
//
// Tests carry the number of the fault's row in the reliability requirements. What testenv/system shows already is not
// repeated here: rows 4 (FLUSHALL), 18 to 20 (clients that leave), 29 (file missing), 30 (model too large).
//
// FAULTS_HERD is the number of first requests of row 21.
package faults
