// Package pull tells the story of models that lie elsewhere, on whole systems: a hub on loopback holds the weights, a
// runner fetches them when a request wants their model, and clients see how far they are.
package pull
