// Package recipes has tests only. Each shipped recipe whose engine `make engines` or `make engines-all` has installed
// meets that engine: it is loaded through a real gateway, answers, and makes room for the next. Tests of an engine that
// is not installed are skipped.
package recipes
