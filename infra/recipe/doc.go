// Package recipe describes engines as data: how a program is started for a model, how one sees that it is ready, what
// its log says when it fails, and which load options it takes. Nothing in it starts a process or reads a file; the
// shipped recipes are embedded, and the `recipes:` section of models.yaml adds to them or overrides parts of them.
//
// # Commands
//
// A command is a list of argument groups. A group is a list of arguments, and {name} inside an argument stands for a
// value: {model} {llm_model} (the same, for models of type llm alone) {mmproj} {alias} {type} {host} {port} {socket}
// {api_key} {media_marker} ([MediaMarker], for models of type embedding alone), or the name of one of the recipe's options. A group in which any placeholder has no value is left out as
// a whole, so that ["--mmproj", "{mmproj}"] vanishes for a model without a projector. An argument that is exactly one placeholder with several values becomes several arguments;
// {type_flags}, {backend_flags} and {options} are such lists. No shell is involved anywhere.
//
// # Options
//
// Load options come from five places: request > saved per model > catalogue > the runner's flags > the recipe's own
// defaults. [Recipe.ParseOptions] checks and normalises one of them by its [Origin], [Recipe.Effective] merges all, and
// [Recipe.CheckEffective] checks the outcome once more before it becomes a command line.
//
// All functions are pure and safe for concurrent use as long as nobody changes a [Recipe] that others read.
package recipe
