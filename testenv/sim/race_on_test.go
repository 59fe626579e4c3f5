//go:build race

package sim

// manySeeds is how many seeds TestSeeds runs: the race detector makes each ten times as slow.
const manySeeds = 60
