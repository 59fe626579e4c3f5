package jsonscan

import (
	"encoding/binary"
	"math/bits"
)

// IndexBracket returns the index of the first [ ] { } or \ in b, or -1. Without the bit that tells small letters from
// capitals, these and | are three bytes in a row, so eight bytes can be tested at a time.
func IndexBracket(b []byte) int {
	const each, high = ones, highs
	i := 0
	if hasBlocks && len(b) >= blocks {
		i = unbracketedBlocks(b)
	}
	for ; ; i += 8 {
		for i > 0 && i+32 <= len(b) && lateIn(b[i:i+32]) == 0 {
			i += 32
		}
		if i+8 > len(b) {
			break
		}
		word := binary.LittleEndian.Uint64(b[i:])
		folded := word &^ (0x20 * each) &^ high
		// An addition sets a byte's high bit if the byte is at least '[', or at least one above ']'.
		found := (folded + (0x80-'[')*each) &^ (folded + (0x80-']'-1)*each) &^ word & high
		for ; found != 0; found &= found - 1 {
			if at := i + bits.TrailingZeros64(found)/8; b[at] != '|' {
				return at
			}
		}
	}
	for ; i < len(b); i++ {
		if c := b[i] &^ 0x20; '[' <= c && c <= ']' && b[i] != '|' {
			return i
		}
	}
	return -1
}

// lateIn returns 0 if none of 32 bytes is in ASCII's rows of [ ] { } and \, which have few other characters besides letters.
func lateIn(b []byte) uint64 {
	late := func(word uint64) uint64 { return (word&(0x5F*ones) + (0x80-'[')*ones) &^ word }
	_ = b[31]
	return (late(binary.LittleEndian.Uint64(b)) | late(binary.LittleEndian.Uint64(b[8:])) |
		late(binary.LittleEndian.Uint64(b[16:])) | late(binary.LittleEndian.Uint64(b[24:]))) & highs
}
