// Package placement turns the pool's state and the catalog into the input of package policy. Gateways and the warmer
// share this one view of the pool, and runners use it to resolve the options and devices of a load.
//
// A runner publishes its host's memory in the fields of the host's hash: memory_budget and memory_total ("cpu=BYTES
// gpu=BYTES", with gpu:0=BYTES and so on where single GPUs can be chosen), gpu_api (how engines are restricted to
// single GPUs), found (its devices one by one, as JSON, for display only), options (its flags, as JSON), and
// need:<model>, a [Need] as JSON. The cards field of a model's record has how much memory of each GPU the model was
// given, in the form of memory_budget.
package placement
