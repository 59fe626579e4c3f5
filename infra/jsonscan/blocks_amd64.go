package jsonscan

import "golang.org/x/sys/cpu"

// blocks is the size of what plainBlocks and unbracketedBlocks read at a time.
const blocks = 64

// hasBlocks says that this machine has plainBlocks and unbracketedBlocks.
var hasBlocks = cpu.X86.HasAVX2

// plainBlocks returns how many bytes of b come before the first block with a quote, a backslash or a control character, and whether one
// of them is outside ASCII.
//
//go:noescape
func plainBlocks(b []byte) (n int, wide bool)

// unbracketedBlocks returns how many bytes of b come before the first block with [ ] { } or \.
//
//go:noescape
func unbracketedBlocks(b []byte) int
