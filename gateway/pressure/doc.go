// Package pressure measures how near this process is to its memory limit, so that a gateway gives up what it can do
// without before the kernel takes everything: connections that are kept first, then new requests. Open streams go on.
//
// What counts is what the collector cannot give back: what was alive at its last run and what the runtime needs around
// it, not the garbage since, nor free pages. That needs a collector which knows the limit, see ApplyToRuntime.
package pressure
