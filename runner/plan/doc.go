// Package plan computes how an engine schedules one load of one model: context, batches, sequences and the memory of
// the key-value cache. A plan depends only on the model's own metadata ([Read]), its load options and its share of the
// device ([Share]), never on another model's plan or on the order of loads.
//
// [Make] is pure. A model without usable metadata gets the plain plan, whose Reason says why.
//
// There are two kinds: a generative model with a cache is paged, with its own pool of KV memory; embedding, reranking
// and speech models are plain and have none.
package plan
