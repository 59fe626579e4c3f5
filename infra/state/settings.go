package state

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/redis/go-redis/v9"
)

// A Setting names one of the pool's run-time tables: small hashes that management calls write and everybody reads.
type Setting string

// The run-time tables.
const (
	SavedOptions Setting = "options"    // model → JSON of options saved by /load
	Pins         Setting = "pins"       // model → 1 pinned, 0 not, whatever the catalogue says
	Aliases      Setting = "aliases"    // alias → model
	Registered   Setting = "registered" // model → JSON of a model registered at run time
	Runtime      Setting = "runtime"    // max_loaded_models, ctx_size, … of /internal/set
	IdleTTL      Setting = "idle"       // model → ms, set by keep_alive
)

// Set writes one entry, "" removes it, and tells all mirrors.
func (s *Store) Set(ctx context.Context, table Setting, name, value string) error {
	key := s.keys.settings(string(table))
	return s.guard(ctx, func(ctx context.Context) error {
		_, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			if value == "" {
				p.HDel(ctx, key, name)
			} else {
				p.HSet(ctx, key, name, value)
			}
			event, _ := json.Marshal(Event{Kind: "settings", State: string(table), Model: name})
			p.Publish(ctx, s.keys.events(), event)
			return nil
		})
		return err
	})
}

// Get reads one entry, "" when there is none.
func (s *Store) Get(ctx context.Context, table Setting, name string) (string, error) {
	var out string
	err := s.guard(ctx, func(ctx context.Context) error {
		var err error
		out, err = s.rdb.HGet(ctx, s.keys.settings(string(table)), name).Result()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return out, err
}

// All reads a whole table.
func (s *Store) All(ctx context.Context, table Setting) (map[string]string, error) {
	return s.hgetall(ctx, s.keys.settings(string(table)))
}

// PutCatalog publishes the catalogue. wakeable maps the hosts that have a driver to its name. It reports whether the
// version is new.
func (s *Store) PutCatalog(ctx context.Context, version string, catalog []byte, wakeable map[string]string) (bool, error) {
	args := make([]any, 0, 2+2*len(wakeable))
	args = append(args, version, string(catalog))
	for h, d := range wakeable {
		args = append(args, h, d)
	}
	out, err := s.eval(ctx, s.scripts.catalogPut, args...)
	return out == int64(1), err
}

// Catalog reads the published catalogue; version "" when there is none.
func (s *Store) Catalog(ctx context.Context) (version string, catalog []byte, err error) {
	m, err := s.hgetall(ctx, s.keys.catalog())
	return m["version"], []byte(m["json"]), err
}

func (s *Store) hgetall(ctx context.Context, key string) (map[string]string, error) {
	var out map[string]string
	err := s.guard(ctx, func(ctx context.Context) error {
		var err error
		out, err = s.rdb.HGetAll(ctx, key).Result()
		return err
	})
	return out, err
}
