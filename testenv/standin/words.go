package main

import (
	"hash/fnv"
	"math/rand/v2"
)

// vocabulary is what answers are made of.
var vocabulary = [...]string{
	"a", "lamp", "river", "seven", "quiet", "stone", "under", "green", "window", "walks",
	"the", "cloud", "before", "paper", "sings", "north", "small", "garden", "and", "late",
}

// words returns n words, a pure function of the prompt. Each but the first begins with
// a space, so that joining them gives a text.
func words(prompt string, n int) []string {
	r := source(prompt)
	out := make([]string, n)
	for i := range out {
		out[i] = vocabulary[r.IntN(len(vocabulary))]
		if i > 0 {
			out[i] = " " + out[i]
		}
	}
	return out
}

// source is a generator of numbers seeded by a text alone.
func source(text string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return rand.New(rand.NewPCG(h.Sum64(), 0x7374616e64696e))
}
