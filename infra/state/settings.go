package state

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Setting names one of the pool's run-time tables: small hashes that management calls write and every process reads.
type Setting string

// Run-time tables.
const (
	SavedOptions Setting = "options"    // model → JSON of options saved by /load
	Pins         Setting = "pins"       // model → a PinValue: pinned or not, overriding the catalogue
	Aliases      Setting = "aliases"    // alias → model
	Registered   Setting = "registered" // model → JSON of a model registered at run time
	Runtime      Setting = "runtime"    // max_loaded_models, ctx_size, … of /internal/set
	IdleTTL      Setting = "idle"       // model → ms, set by keep_alive
	APIKeys      Setting = "keys"       // hex SHA-256 of an API key → what it may do, as in a line of the keys file
	Forgets      Setting = "forgotten"  // model, "" for all → when its conversations were last forgotten, see ForgetConversations
)

// PinValue returns an entry for Pins. No two are equal, so that readers notice a repeated call, which ends a pin that a
// load has set since.
func PinValue(pinned bool) string {
	if pinned {
		return "1 " + rand.Text()
	}
	return "0 " + rand.Text()
}

// PinnedBy reports whether an entry of Pins pins its model.
func PinnedBy(value string) bool { return strings.HasPrefix(value, "1") }

// Set writes one entry, or removes it if value is "", and notifies all mirrors.
func (s *Store) Set(ctx context.Context, table Setting, name, value string) error {
	key := s.keys.settings(string(table))
	return s.guard(ctx, func(ctx context.Context) error {
		_, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			if value == "" {
				p.HDel(ctx, key, name)
			} else {
				p.HSet(ctx, key, name, value)
			}
			s.publish(ctx, p, Event{Kind: "settings", State: string(table), Model: name})
			return nil
		})
		return err
	})
}

// Get reads one entry, or "" if there is none.
func (s *Store) Get(ctx context.Context, table Setting, name string) (string, error) {
	all, err := s.All(ctx, table)
	return all[name], err
}

// All reads a whole table.
func (s *Store) All(ctx context.Context, table Setting) (map[string]string, error) {
	return s.hash(ctx, s.keys.settings(string(table)))
}

// idleKept is how long a warmer's default idle time stays published after its last sweep.
const idleKept = 24 * time.Hour

// maxIdle bounds a default idle time, so that times computed with it stay valid.
const maxIdle = 10 * 365 * 24 * time.Hour

// PutDefaultIdle publishes the idle time after which the warmer unloads models whose catalogue entry has none; negative
// means never. It notifies all mirrors of a change.
func (s *Store) PutDefaultIdle(ctx context.Context, idle time.Duration) error {
	next := strconv.FormatInt(max(idle, -time.Millisecond).Milliseconds(), 10)
	return s.guard(ctx, func(ctx context.Context) error {
		was, err := s.readIdle(ctx)
		if err == nil {
			err = s.rdb.Set(ctx, s.keys.idle(), next, idleKept).Err()
		}
		if err != nil || was == next {
			return err
		}
		_, err = s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			s.publish(ctx, p, Event{Kind: "settings", State: "idle"})
			return nil
		})
		return err
	})
}

// publish notifies all mirrors.
func (s *Store) publish(ctx context.Context, p redis.Pipeliner, e Event) {
	text, _ := json.Marshal(e)
	p.Publish(ctx, s.keys.events(), text)
	p.Publish(ctx, s.keys.poolEvents(), text)
}

// readIdle reads the default idle time, or "" if there is none or the key is not a string.
func (s *Store) readIdle(ctx context.Context) (string, error) {
	text, err := s.rdb.GetRange(ctx, s.keys.idle(), 0, 31).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return "", nil
	}
	return text, err
}

// DefaultIdle returns what PutDefaultIdle published, for listings; known is false if there is nothing readable.
func (s *Store) DefaultIdle(ctx context.Context) (idle time.Duration, known bool, err error) {
	var text string
	err = s.guard(ctx, func(ctx context.Context) error {
		var err error
		text, err = s.readIdle(ctx)
		return err
	})
	ms, bad := strconv.ParseInt(text, 10, 64)
	if err != nil || bad != nil || ms > maxIdle.Milliseconds() {
		return 0, false, err
	}
	return time.Duration(max(ms, -1)) * time.Millisecond, true, nil
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
