// Package relay sends one HTTP/1.1 request to an upstream and returns its response to a fasthttp client connection.
// Both hops use it: gateway to runner, and runner to engine.
//
// A Client sends a Request built from an allow-list of fields and returns a Response, which is also the body stream of
// the client's response. fasthttp's goroutine for the client reads it, without a pipe or a second goroutine. Events
// tracks where a comment can be inserted into an event stream. A BodyReader reads bodies of requests. A Canceler ends
// an exchange from outside, a Watcher notices when a client leaves, a Listener bounds writes and connections, and
// SmugglingCheck refuses requests with two framings.
//
// Guarantees:
//   - No byte of a request is sent twice. The only retry is on another connection, when an idle one accepted nothing.
//   - A connection is reused only after a body that ended properly and was followed by nothing.
//   - A truncated body does not look complete: reading it ends in an error, and fasthttp cuts the client's body. Of bodies
//     that only the end of the connection delimits, this holds for the event streams of chats.
//   - Bytes from the upstream are never held back to wait for more, and what arrived together is sent together.
//   - A connection has a buffer only while it has unread bytes; a warm request allocates nothing but its Response.
package relay
