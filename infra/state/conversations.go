package state

import (
	"context"
	"encoding/json"
	"strconv"
	"time"
)

// Limits of the records of saved conversations.
const (
	conversationsKept   = 24 * time.Hour // after the last save
	conversationsHosts  = 64             // of a model; one more and the model starts again
	conversationsModels = 1000
)

// Conversations is what a host has saved of a model's conversations. It says nothing about what was said.
type Conversations struct {
	Count   int   `json:"count"`
	Tokens  int64 `json:"tokens"`
	Bytes   int64 `json:"bytes"`
	SavedMS int64 `json:"saved_ms"` // when the last was, since the epoch
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

// Conversations returns which hosts have saved conversations of a model. What is a day old is left out.
func (s *Store) Conversations(ctx context.Context, model string) (map[string]Conversations, error) {
	values, err := s.hash(ctx, s.keys.conv(model))
	if err != nil {
		return nil, err
	}
	out := map[string]Conversations{}
	for host, value := range values {
		var c Conversations
		if json.Unmarshal([]byte(value), &c) == nil && time.Since(time.UnixMilli(c.SavedMS)) < conversationsKept {
			out[host] = c
		}
	}
	return out, nil
}

// ForgetConversations records that nothing which was computed of a model's conversations before now can be used again,
// "" for all models, and notifies all mirrors. It returns the time, in microseconds since the epoch, which is after
// that of every earlier call.
func (s *Store) ForgetConversations(ctx context.Context, model string) (at uint64, err error) {
	all, err := s.Forgotten(ctx)
	if err != nil {
		return 0, err
	}
	at = max(uint64(time.Now().UnixMicro()), all[model]+1, all[""]+1)
	if err := s.Set(ctx, Forgets, model, strconv.FormatUint(at, 10)); err != nil {
		return 0, err
	}
	_ = s.guard(ctx, func(ctx context.Context) error { // a stale record costs each host one failed lookup
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
