package main

// tokenBytes is how much text a token carries: token counts are ceil(bytes/3), so a
// test can make a prompt of any length.
const tokenBytes = 3

// tokenize cuts text into tokens. A token is its bytes and their number packed into
// one integer, so detokenize needs no table and every engine process agrees.
func tokenize(text string) []int {
	tokens := make([]int, 0, countTokens(text))
	for len(text) > 0 {
		n := min(tokenBytes, len(text))
		t := n
		for i := range n {
			t = t<<8 | int(text[i])
		}
		tokens = append(tokens, t)
		text = text[n:]
	}
	return tokens
}

// countTokens is len(tokenize(text)).
func countTokens(text string) int {
	return (len(text) + tokenBytes - 1) / tokenBytes
}

// detokenize is the inverse of tokenize. A number that is no token of ours becomes a
// question mark.
func detokenize(tokens []int) string {
	var text []byte
	for _, t := range tokens {
		n := 0
		for k := 1; k <= tokenBytes; k++ {
			if t>>(8*k) == k {
				n = k
			}
		}
		if n == 0 {
			text = append(text, '?')
		}
		for i := n - 1; i >= 0; i-- {
			text = append(text, byte(t>>(8*i)))
		}
	}
	return string(text)
}
