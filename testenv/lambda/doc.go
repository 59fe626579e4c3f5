// Package lambda is AWS Lambda for tests, on loopback: it runs a program as a function's environments do and hands it
// events by the Runtime API (version 2018-06-01), one at a time each. A test invokes the function as the service's API does
// ([Function.Invoke], the answer in one piece) or as a function URL with streamed responses does ([Function.URL]).
//
// What programs must live with in the cloud is true here:
//
//   - One environment is one process. While it is busy the next event starts another one, up to a limit, above which
//     events are refused with 429.
//   - Between its call for the next event and that event a process is frozen (SIGSTOP).
//   - A process that has not answered when its time is over is killed.
//   - A streamed answer begins with a prelude in JSON and eight zero bytes. One that breaks off (by the error trailers, or
//     because the process died) is cut at the client, never ended in order.
//   - Who leaves a streamed answer is not missed: it is taken from the function to its end.
//   - An event is at most 6 MB, and so is an answer in one piece.
//
// Not here: limits of bandwidth, extensions, IAM.
package lambda
