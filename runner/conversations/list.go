package conversations

import (
	"cmp"
	"slices"
	"strings"
)

// Kept summarizes a model's saved conversations on this host.
type Kept struct {
	Model         string  `json:"model_name"`
	Conversations int     `json:"conversations"`
	Tokens        int64   `json:"tokens"`
	Bytes         int64   `json:"bytes"`
	Oldest        float64 `json:"oldest"` // age in seconds
	Newest        float64 `json:"newest"`
}

// Kept returns the saved conversations, by model. A nil store has none.
func (s *Store) Kept() []Kept {
	if s == nil {
		return []Kept{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := map[string]*Kept{}
	out := []Kept{}
	for _, e := range s.entries {
		age := max(e.age(), 0)
		if age >= s.cfg.TTL {
			continue
		}
		k := sums[e.model()]
		if k == nil {
			k = &Kept{Model: e.model(), Newest: age.Seconds()}
			sums[k.Model] = k
		}
		k.Conversations, k.Tokens, k.Bytes = k.Conversations+1, k.Tokens+int64(e.Tokens), k.Bytes+e.size
		k.Oldest, k.Newest = max(k.Oldest, age.Seconds()), min(k.Newest, age.Seconds())
	}
	for _, k := range sums {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b Kept) int { return cmp.Compare(a.Model, b.Model) })
	return out
}

// modelName is the name of a model in a header.
type modelName [200]byte

func nameOf(model string) (n modelName) {
	copy(n[:], model)
	return n
}

// model returns the name of the entry's model.
func (e *entry) model() string { return strings.TrimRight(string(e.Model[:]), "\x00") }
