// Package plan computes, for one load of one model, how its engine is to schedule: context, batches, sequences and the
// memory of the key-value cache. A plan comes from the model's own metadata ([Read]), its load options and its share of
// the device ([Share]), and from nothing else: never from another model's plan and never from the order of loads.
//
// [Make] is pure. A model without usable metadata gets the plain plan, and the plan says why.
//
// Two kinds: a generative model with a cache is paged, with a pool of KV memory of its own; embedding, reranking and
// speech models are plain and have none.
package plan
