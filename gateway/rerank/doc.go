// Package rerank reads rerank requests in the formats of Cohere, Jina, Voyage and Text Embeddings Inference, and answers in
// them. Engines take plain texts and answer in any order; this package sorts and cuts their results and adds the documents.
// It does no I/O.
package rerank
