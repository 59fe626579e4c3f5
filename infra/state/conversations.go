package state

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Limits of what Redis tells of saved conversations.
const (
	conversationsKept   = 24 * time.Hour // after the last save
	conversationsHosts  = 64             // of a model; one more and the model starts anew
	conversationsModels = 1000
	maxConversations    = 1 << 16
	maxConversationSize = 1 << 50

	forgetsKept = 2 * conversationsKept
	forgetsMost = 1000 // models
	maxModel    = 256  // bytes of a model's name
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
	_, err = s.eval(ctx, "conv_put", model, host, text,
		conversationsKept.Milliseconds(), conversationsHosts, conversationsModels)
	return err
}

// Conversations returns which hosts have saved conversations of a model. What is out of range or a day old is left out.
func (s *Store) Conversations(ctx context.Context, model string) (map[string]Conversations, error) {
	values, err := s.hash(ctx, s.keys.conv(model))
	if err != nil {
		return nil, err
	}
	out := map[string]Conversations{}
	for host, value := range values {
		var c Conversations
		if json.Unmarshal([]byte(value), &c) == nil && c.valid(time.Now()) {
			out[host] = c
		}
	}
	return out, nil
}

// ForgetConversations records that nothing which was computed of a model's conversations before now may be used again, "" for all
// models, and notifies all mirrors. It returns the time, in microseconds since the epoch, which is after that of every earlier call. The
// record is kept for two days: nothing that was saved is used for longer than one. With a thousand others it is ErrFull.
func (s *Store) ForgetConversations(ctx context.Context, model string) (at uint64, err error) {
	if len(model) > maxModel {
		return 0, fmt.Errorf("%w: a name of %d bytes", ErrFull, len(model))
	}
	all, err := s.Forgotten(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	at = max(uint64(now.UnixMicro()), all[model]+1, all[""]+1)
	var old []string
	for name, then := range all {
		if name != model && (model == "" || then < all[""] || then < uint64(now.Add(-forgetsKept).UnixMicro())) {
			old = append(old, name)
		}
	}
	if _, known := all[model]; !known && len(all)-len(old) >= forgetsMost {
		return 0, fmt.Errorf("%w: %d models were forgotten within two days", ErrFull, len(all))
	}
	if err := s.Set(ctx, Forgets, model, decimal(at)); err != nil {
		return 0, err
	}
	for _, name := range old {
		_ = s.Set(ctx, Forgets, name, "") // the next call tries again
	}
	_ = s.guard(ctx, func(ctx context.Context) error { // hosts are asked once in vain for what it still tells
		if model != "" {
			return s.rdb.Del(ctx, s.keys.conv(model)).Err()
		}
		names, err := s.rdb.ZRange(ctx, s.keys.convs(), 0, 2*conversationsModels).Result()
		if err != nil || len(names) == 0 {
			return err
		}
		keys := make([]string, len(names))
		for i, name := range names {
			keys[i] = s.keys.conv(name)
		}
		return s.rdb.Del(ctx, keys...).Err()
	})
	return at, nil
}

// Forgotten returns when models' conversations were last forgotten, and under "" those of all models.
func (s *Store) Forgotten(ctx context.Context) (map[string]uint64, error) {
	table, err := s.All(ctx, Forgets)
	out := make(map[string]uint64, len(table))
	for model, text := range table {
		if at, bad := strconv.ParseUint(text, 10, 64); bad == nil {
			out[model] = at
		}
	}
	return out, err
}
