//go:build !amd64

package jsonscan

const blocks = 64

var hasBlocks = false

func plainBlocks([]byte) (n int, wide bool) { return 0, false }

func unbracketedBlocks([]byte) int { return 0 }
