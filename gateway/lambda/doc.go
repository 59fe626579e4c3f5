// Package lambda puts a gateway behind an AWS Lambda function URL with streamed responses.
//
// The gateway is the one that listens elsewhere: its server accepts connections of a [Listener] in memory, and a [Function]
// makes an HTTP request of each event, sends it there and streams the answer back as it comes. An answer that breaks off is
// reported in the trailers of the Runtime API, so that nobody takes it for whole.
//
// Nothing runs between two events: the process is frozen. What the rest of the gateway keeps up to date all the time is
// brought up to date before each request, and what it does behind its requests is done before an answer's last byte
// ([Gateway]). Lambda says when an event's time is over; shortly before, what is still open is ended in order.
//
// Lambda does not report that a client has left: the answer is computed to its end.
package lambda
