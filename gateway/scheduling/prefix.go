package scheduling

import (
	"github.com/zeebo/xxh3"

	"reveille/infra/jsonscan"
)

// Limits of the part of a body that chooses its copy: at most prefixMessages messages of the first turn, and prefixBytes of
// each.
const (
	prefixMessages = 8
	prefixBytes    = 16 << 10
)

// prefixOf identifies the beginning that a conversation keeps from turn to turn: its messages up to the first one of the
// user, or the head of a prompt. If that message shows or plays something, it identifies the first picture or sound alone:
// other conversations about it go to the same copy then, whose host has encoded it. It returns 0 for a body without
// either. It reads the body as far as that, and decodes nothing.
func prefixOf(body []byte) (key uint64) {
	w := jsonscan.WalkOf(body)
	w.Object(func(name []byte) bool {
		switch string(name) {
		case "messages":
			n := 0
			w.Array(func() bool {
				message := w.Raw().Raw
				user, media := inMessage(message)
				if n++; user && media != nil {
					key = xxh3.HashSeed(media[:min(len(media), prefixBytes)], uint64(len(media)))
					key = xxh3.HashSeed(media[max(0, len(media)-prefixBytes):], key)
					return false
				}
				key = xxh3.HashSeed(message[:min(len(message), prefixBytes)], key+1)
				return n < prefixMessages && !user
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

// inMessage reports whether a message is the user's, and returns the first part of its content that is no text.
func inMessage(message []byte) (user bool, media []byte) {
	w := jsonscan.WalkOf(message)
	w.Object(func(name []byte) bool {
		switch string(name) {
		case "role":
			user = string(w.Raw().Raw) == `"user"`
		case "content":
			if w.Kind() != jsonscan.Array {
				return true
			}
			w.Array(func() bool {
				part := w.Raw().Raw
				if media == nil && !isText(part) {
					media = part
				}
				return true
			})
		}
		return true
	})
	return user, media
}

// isText reports whether a part of a content is text, or of no type.
func isText(part []byte) bool {
	text := true
	w := jsonscan.WalkOf(part)
	w.Object(func(name []byte) bool {
		if string(name) != "type" {
			return true
		}
		text = string(w.Raw().Raw) == `"text"`
		return false
	})
	return text
}

// preferredCopy returns the copy that a beginning prefers among those with room for one more request, or -1 if other requests
// have taken the last room meanwhile.
func preferredCopy(list []loadedCopy, key uint64) int {
	sum := int64(1) // this request
	for i := range list {
		sum += list[i].open()
	}
	n := int64(len(list))
	most := (5*sum + 4*n - 1) / (4 * n)
	best, top := -1, uint64(0)
	for i := range list {
		if list[i].open() >= most {
			continue
		}
		if score := mix(key ^ list[i].name); best < 0 || score > top {
			best, top = i, score
		}
	}
	return best
}

// mix spreads a number over all bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
