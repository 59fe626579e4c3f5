package state

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Limits of the needs in Redis.
const (
	needKept  = 30 * 24 * time.Hour // after the last write
	maxNeeds  = 1000
	maxNeed   = 1 << 50 // bytes, so that sums cannot overflow
	needValue = 256     // bytes of a value
)

// A Need is the memory that a load takes of its devices, as runners measured it.
type Need struct {
	Bytes int64 `json:"bytes"`
	// FailedMS is when an engine last ran out of memory with less, in ms since the epoch: Bytes is then what it would have
	// needed at least. 0 if Bytes was measured.
	FailedMS int64 `json:"failed_ms,omitempty"`
}

// PutNeed keeps a need under its key, which has no white space. The oldest needs of the pool make room for it.
func (s *Store) PutNeed(ctx context.Context, key string, n Need) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	_, err = s.eval(ctx, s.scripts.needPut, key, s.signer.mac("need", key, string(text))+" "+string(text), needKept.Milliseconds(), maxNeeds)
	return err
}

// Need returns the need with a key, or zero if there is none. What another secret, pool or nobody signed counts as none.
func (s *Store) Need(ctx context.Context, key string) (Need, error) {
	var value string
	err := s.guard(ctx, func(ctx context.Context) (err error) {
		value, err = s.rdb.GetRange(ctx, s.keys.need(key), 0, needValue-1).Result()
		return err
	})
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Need{}, nil
	}
	if err != nil {
		return Need{}, err
	}
	mac, text, _ := strings.Cut(value, " ")
	var n Need
	if !s.signer.ok(mac, "need", key, text) || json.Unmarshal([]byte(text), &n) != nil || n.Bytes <= 0 || n.Bytes > maxNeed || n.FailedMS < 0 {
		return Need{}, nil
	}
	return n, nil
}
