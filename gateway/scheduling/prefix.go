package scheduling

import (
	"github.com/zeebo/xxh3"

	"reveille/infra/jsonscan"
)

// Limits of the part of a body that chooses its copy: at most prefixMessages messages of the first turn, and
// prefixBytes of each.
const (
	prefixMessages = 8
	prefixBytes    = 16 << 10
)

// prefixOf identifies the prefix that a conversation keeps from turn to turn: its messages up to the first one of
// the user, or the head of a prompt. It returns 0 for a body without either. It reads the body as far as that, and
// decodes nothing.
func prefixOf(body []byte) (key uint64) {
	w := jsonscan.WalkOf(body)
	w.Object(func(name []byte) bool {
		switch string(name) {
		case "messages":
			n := 0
			w.Array(func() bool {
				message := w.Raw().Raw
				key = xxh3.HashSeed(message[:min(len(message), prefixBytes)], key+1)
				n++
				return n < prefixMessages && !fromUser(message)
			})
		case "prompt":
			text := w.Raw().Raw
			key = xxh3.HashSeed(text[:min(len(text), prefixBytes)], 1)
		default:
			return true
		}
		return false
	})
	return key
}

// fromUser reports whether a message is the user's.
func fromUser(message []byte) (user bool) {
	w := jsonscan.WalkOf(message)
	w.Object(func(name []byte) bool {
		if string(name) == "role" {
			user = string(w.Raw().Raw) == `"user"`
		}
		return true
	})
	return user
}

// preferredCopy returns the copy that a prefix prefers among those with room for one more request, or -1 if other
// requests have taken the last room meanwhile.
func preferredCopy(list []loadedCopy, key uint64) int {
	sum := int64(1) // this request
	for i := range list {
		sum += list[i].open()
	}
	n := int64(len(list))
	// 1.25 times the mean, rounded up.
	most := (5*sum + 4*n - 1) / (4 * n)
	best, top := -1, uint64(0)
	for i := range list {
		if list[i].open() >= most {
			continue
		}
		if score := xxh3.HashStringSeed(list[i].endpoint.Host, key); best < 0 || score > top {
			best, top = i, score
		}
	}
	return best
}
