// Package placement turns what the pool's state and the catalogue say into what package policy decides on. Gateways and
// the warmer share this one view of the pool, and runners resolve the options and devices of a load with it.
//
// What a runner publishes of its host's memory is in the fields of the host's hash: memory_budget and memory_total
// ("cpu=BYTES gpu=BYTES", with gpu:0=BYTES and so on where GPUs are told apart), gpu_api (how engines are told of them), found (its devices one by one, as JSON, for people), options (its flags, as JSON), and need:<model>,
// a [Need] as JSON. A model's record has in cards what it takes of each GPU that it was given, in the same form.
package placement
