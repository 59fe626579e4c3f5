package state

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
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
				p.HDel(ctx, key+":mac", name)
			} else {
				p.HSet(ctx, key, name, value)
				p.HSet(ctx, key+":mac", name, s.signer.mac("settings", string(table), name, value))
			}
			s.publish(ctx, p, Event{Kind: "settings", State: string(table), Model: name})
			return nil
		})
		return err
	})
}

// Get reads one entry, or "" if there is none. See All for unsigned entries.
func (s *Store) Get(ctx context.Context, table Setting, name string) (string, error) {
	all, err := s.All(ctx, table)
	return all[name], err
}

// All reads a whole table. Each entry with an invalid signature is replaced by the last valid one that this Store read,
// if any.
func (s *Store) All(ctx context.Context, table Setting) (map[string]string, error) {
	values, macs, readable, err := s.record(ctx, "settings:"+string(table), maxRecord)
	if err != nil {
		return nil, err
	}
	return s.signer.admitTable(table, values, macs, readable), nil
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

// DefaultIdle returns what PutDefaultIdle published; known is false if there is nothing readable. The value is not
// signed: use it only in listings.
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

// publishTries bounds the attempts to publish when other gateways publish at the same time.
const publishTries = 4

// PutCatalog publishes the catalogue. wakeable maps each host that has a driver to the driver's name. It reports
// whether the version is new or replaced a refused record.
func (s *Store) PutCatalog(ctx context.Context, version string, catalog []byte, wakeable map[string]string) (bool, error) {
	for range publishTries {
		have, right, present, err := s.readCatalog(ctx)
		if err != nil {
			return false, err
		}
		next := have
		if !right || have.version != version || have.json != string(catalog) {
			next = s.signer.signCatalog(version, string(catalog), max(s.signer.lastSerial()+1, uint64(time.Now().UnixMicro())))
		}
		args := make([]any, 0, 5+2*len(wakeable))
		args = append(args, next.version, next.json, decimal(next.serial), next.mac, present)
		for h, d := range wakeable {
			args = append(args, h, d)
		}
		out, err := s.eval(ctx, s.scripts.catalogPut, args...)
		if err != nil {
			return false, err
		}
		if out != int64(-1) {
			s.signer.admitCatalog(next, true) // never accept an older one from now on
			return out == int64(1), nil
		}
	}
	return false, errors.New("the catalogue in Redis changes too often")
}

// Catalog reads the published catalogue; version is "" if there is none. A catalogue with an invalid signature, or
// older than one read before, is replaced by the last valid one that this Store read, if any.
func (s *Store) Catalog(ctx context.Context) (version string, catalog []byte, err error) {
	r, _, _, err := s.readCatalog(ctx)
	return r.version, []byte(r.json), err
}

// readCatalog returns the record to use, whether it is the one in Redis, and the MAC in Redis.
func (s *Store) readCatalog(ctx context.Context) (r catalogRecord, right bool, present string, err error) {
	m, _, readable, err := s.record(ctx, "catalog", maxRecord)
	if err != nil {
		return catalogRecord{}, false, "", err
	}
	serial, _ := strconv.ParseUint(m["serial"], 10, 64) // a wrong one fails the signature
	r, right = s.signer.admitCatalog(catalogRecord{m["version"], m["json"], serial, m["mac"]}, readable)
	return r, right, m["mac"], nil
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
