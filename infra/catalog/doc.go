// Package catalog holds what an operator says about a pool: its models, its hosts, its recipes, the defaults and the
// planned warm-ups, as one immutable value with a version.
//
// A [Catalog] comes from models.yaml ([Load], [Parse]) or, on runners and in the warmer, from the JSON that a gateway
// published ([Unmarshal]). Whatever its source it was checked as a whole: every problem of a file is reported in one go,
// each with its place and, where there is one, a hint. Nobody changes a catalogue after it was made, so that all its
// methods are safe for concurrent use; pointers and slices it hands out are to be read only.
//
// A name in a request becomes a model's id by [Catalog.Resolve]. [Diff] tells what a new catalogue asks of what runs
// under an old one, and a [Watcher] makes a new one when the file changes.
//
// Relative paths in a file (checkpoint, mmproj) are relative to the working directory of the process that opens them,
// not to the file that names them: one catalogue serves many hosts, and the file need not exist on any of them.
//
// A file without a hosts section leaves the hosts to the runners that register themselves: then nothing is said about
// whether a model has a host, or whether the names in a model's hosts list exist.
package catalog
