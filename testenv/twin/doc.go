// Package twin compares the whole system, over HTTP, with a naive model of its slot rules: random histories of requests,
// loads, unloads and pins, one call at a time, after each of which the loaded models and the order of their last use must
// be those of the model.
//
// TWIN_STEPS is the length of each history (2,000 is the full proof), TWIN_SEED chooses another one.
package twin
