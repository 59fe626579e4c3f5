// Package attack tries to break into running systems from outside: separate processes, raw sockets, hostile bodies,
// pages, keys, engines and Redis values. Each test names an attack, makes it in several spellings, and asserts that
// nothing was executed, read, fetched or allocated, and that the system still serves afterwards.
package attack
