// Package clients has tests only. They try programs of other people as they are, in pinned versions, through a real gateway: agents
// that write a file (Claude Code, Codex, Continue, aider) and the libraries that applications use. Installing them takes hundreds of
// megabytes, so this waits for `make clients`.
package clients
