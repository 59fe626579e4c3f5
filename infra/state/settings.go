package state

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Setting names one of the pool's run-time tables: small hashes that management calls write and every process reads.
type Setting string

// Run-time tables.
const (
	SavedOptions Setting = "options"    // model → JSON of options saved by /load
	Pins         Setting = "pins"       // model → a PinValue: pinned or not, overriding the catalog
	Aliases      Setting = "aliases"    // alias → model
	Registered   Setting = "registered" // model → JSON of a model registered at run time
	Runtime      Setting = "runtime"    // max_loaded_models, ctx_size, … of /internal/set
	IdleTTL      Setting = "idle"       // model → ms, set by keep_alive; "" for all others, set by the warmer; negative: never
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

// ParsePinValue reports whether an entry of Pins pins its model.
func ParsePinValue(value string) bool { return strings.HasPrefix(value, "1") }

// IsPinned reports whether a model is pinned: by its load, nil if that leaves it open, else by its entry of Pins, "" for
// none, else by the catalog.
func IsPinned(load *bool, entry string, catalog bool) bool {
	switch {
	case load != nil:
		return *load
	case entry != "":
		return ParsePinValue(entry)
	}
	return catalog
}

// Set writes one entry, or removes it if value is "", and notifies all mirrors.
func (s *Store) Set(ctx context.Context, table Setting, name, value string) error {
	key := s.keys.settings(string(table))
	return s.guard(ctx, func(ctx context.Context) error {
		commands, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			if value == "" {
				p.HDel(ctx, key, name)
			} else {
				p.HSet(ctx, key, name, value)
			}
			s.publish(ctx, p, Event{Kind: "settings", State: string(table), Model: name})
			return nil
		})
		for _, c := range commands {
			if redis.HasErrorPrefix(err, "EXECABORT") && c.Err() != nil {
				return c.Err() // why Redis did not take the command, and so none
			}
		}
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

// publish notifies all mirrors.
func (s *Store) publish(ctx context.Context, p redis.Pipeliner, e Event) {
	text, _ := json.Marshal(e)
	p.Publish(ctx, s.keys.events(), text)
	p.Publish(ctx, s.keys.poolEvents(), text)
}
