// Package recipe describes engines as data: how to start a program for a model, how to tell that it is ready, what its
// log says when it fails, and which load options it takes. The package starts no process and reads no file. Its shipped
// recipes are embedded; the `recipes:` section of models.yaml adds recipes or overrides parts of them.
//
// # Commands
//
// A command is a list of argument groups, each of which is a list of arguments. {name} inside an argument stands for a
// value: {model} {llm_model} (the same, but only for models of type llm) {mmproj} {alias} {type} {host} {port} {socket}
// {api_key} {media_marker} ([MediaMarker], only for models of type embedding), {slots} (the folder where an engine
// that keeps its conversations saves them), {dir} (the engine's private folder, which is removed when it has ended),
// {gpu_count} (how many GPUs the load was
// given), {gpu_names} {gpu_name} (those GPUs as llama-server names them, and the first one, where no variable of the
// environment shows them), or the name of one of the recipe's options. A group is left out if any of its placeholders
// has no value, so that ["--mmproj", "{mmproj}"] vanishes for a model without a projector. An argument that is exactly
// one placeholder with several values becomes several arguments;
// {type_flags}, {backend_flags} and {options} are such lists. No shell is involved anywhere.
//
// # Options
//
// Load options come from six layers: request > saved per model > catalog > run-time settings > the runner's flags > the
// recipe's own defaults. [Recipe.ParseOptions] checks and normalizes one layer by its [Origin], [Recipe.Effective]
// merges all layers. Options of kind args, and texts without a list of values, count only from the catalog and the
// runner's flags.
//
// All functions are pure, and safe for concurrent use as long as nobody changes a [Recipe] that others read.
package recipe
