//go:build !race

package sim

// manySeeds is how many seeds TestSeeds runs.
const manySeeds = 1000
