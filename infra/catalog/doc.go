// Package catalog holds an operator's configuration of a pool as one immutable value with a version: models, hosts,
// recipes, defaults and planned warm-ups.
//
// A [Catalog] comes from models.yaml ([Load], [Parse]) or, on runners and in the warmer, from the JSON that a gateway
// published ([Unmarshal]). Whatever its source, it was checked as a whole: all problems of a file are reported
// together, each with its position and, if there is one, a hint. Nobody changes a catalog after it was made, so all its
// methods are safe for concurrent use. The pointers and slices that it returns are read-only.
//
// [Catalog.Resolve] turns a name in a request into a model's id. [Outdated] reports whether a new catalog requires a
// model's engine to be reloaded, and a [Watcher] makes a new catalog when the file changes.
//
// Relative paths in a file (checkpoint, mmproj) are relative to the working directory of the process that opens them,
// not to the file that names them: one catalog serves many hosts, and the file need not exist on any of them.
//
// A file without a hosts section leaves the hosts to the runners that register themselves. The check then does not
// cover whether a model has a host, or whether the names in a model's hosts list exist.
package catalog
