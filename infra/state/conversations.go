package state

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
)

// Limits of what Redis tells of saved conversations.
const (
	conversationsKept   = 24 * time.Hour // after the last save
	conversationsHosts  = 64             // of a model; one more and the model starts anew
	conversationsModels = 1000
	conversationsValue  = 512 // bytes of a value
	maxConversations    = 1 << 16
	maxConversationSize = 1 << 50
)

// Conversations is what a host has saved of a model's conversations. It tells nothing of what was said.
type Conversations struct {
	Identity string `json:"identity"` // 64 hex digits: equal where the engines' numbers are
	Count    int    `json:"count"`
	Tokens   int64  `json:"tokens"`
	Bytes    int64  `json:"bytes"`
	SavedMS  int64  `json:"saved_ms"` // when the last was, since the epoch
}

// valid reports whether c is in range and not older than conversationsKept.
func (c Conversations) valid(now time.Time) bool {
	_, err := hex.DecodeString(c.Identity)
	age := now.Sub(time.UnixMilli(c.SavedMS))
	return err == nil && len(c.Identity) == 64 && c.Count > 0 && c.Count <= maxConversations && c.Tokens > 0 && c.Tokens <= maxConversationSize &&
		c.Bytes > 0 && c.Bytes <= maxConversationSize && age < conversationsKept && age > -time.Hour
}

// PutConversations records what a host has saved of a model. It replaces what was recorded of the same host and model.
func (s *Store) PutConversations(ctx context.Context, model, host string, c Conversations) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = s.eval(ctx, s.scripts.convPut, model, host, s.signer.mac("conv", model, host, string(text))+" "+string(text),
		conversationsKept.Milliseconds(), conversationsHosts, conversationsModels)
	return err
}

// Conversations returns which hosts have saved conversations of a model. What another secret, pool or nobody signed, or
// is out of range or a day old, is left out.
func (s *Store) Conversations(ctx context.Context, model string) (map[string]Conversations, error) {
	values, _, _, err := s.record(ctx, "conv:"+model, 2*conversationsHosts*conversationsValue)
	if err != nil {
		return nil, err
	}
	out := map[string]Conversations{}
	for host, value := range values {
		mac, text, _ := strings.Cut(value, " ")
		var c Conversations
		if len(value) <= conversationsValue && s.signer.ok(mac, "conv", model, host, text) && json.Unmarshal([]byte(text), &c) == nil && c.valid(time.Now()) {
			out[host] = c
		}
	}
	return out, nil
}
