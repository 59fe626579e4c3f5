// Package lambda is AWS Lambda for tests, on loopback: it runs a program as a function's one environment does and hands it
// events by the Runtime API (version 2018-06-01), one at a time.
//
// What programs must live with in the cloud is true here: between its call for the next event and that event a process
// is frozen (SIGSTOP); one that has not answered when its time is over is killed; an event is at most 6 MB, and so is a
// response. Not here: several environments, function URLs, extensions, IAM.
package lambda
