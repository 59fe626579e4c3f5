package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"reveille/infra/awssecret"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/mmstats"
	"reveille/infra/state"
	"reveille/infra/term"
)

// MM is `gateway mm`: what the encoder cache holds in Redis, and how often it spared an encode.
type MM struct {
	config.RedisFinder
	JSON bool `help:"Print it as JSON."`
}

// mmTimeout bounds one call: the list walks through the keys of the database.
const mmTimeout = 10 * time.Second

type mmRow struct {
	Signature string   `json:"signature"`
	Models    []string `json:"models"`
	Media     int      `json:"media"`
	Bytes     int64    `json:"bytes"`
	mmstats.Stats
}

// Run lists signatures with the models that have them, largest first; then such models as have been counted but have
// nothing in Redis any more.
func (c *MM) Run(ctx context.Context, out io.Writer) error {
	redis, err := c.Find()
	if err != nil {
		return err
	}
	credentials := awssecret.FollowRedis(redis.RedisSecret, slog.New(slog.DiscardHandler))
	o := state.Options{URL: redis.RedisURL, Credentials: credentials, Pool: redis.Pool, Timeout: mmTimeout, Unverified: true}
	rdb, err := state.Client(o)
	if err != nil {
		return err
	}
	defer rdb.Close()
	usage, err := mmstats.List(ctx, rdb, redis.Pool)
	if err != nil {
		return c.Explain(err)
	}
	users, err := signatures(ctx, o)
	if err != nil {
		return err
	}
	rows := make([]mmRow, 0, len(usage))
	for _, u := range usage {
		user := users[u.Signature]
		rows = append(rows, mmRow{hex16(u.Signature), append([]string{}, user.models...), u.Entries, u.Bytes, user.stats})
		delete(users, u.Signature)
	}
	for _, sig := range slices.Sorted(maps.Keys(users)) {
		if user := users[sig]; user.stats != (mmstats.Stats{}) {
			rows = append(rows, mmRow{Signature: hex16(sig), Models: user.models, Stats: user.stats})
		}
	}
	if c.JSON {
		return print(out, rows)
	}
	w := term.Table(out)
	fmt.Fprintln(w, "SIGNATURE\tMEDIA\tSIZE\tHITS\tMISSES\tMODELS")
	for _, r := range rows {
		models := strings.Join(r.Models, ", ")
		if models == "" {
			models = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%s\n", r.Signature, r.Media, catalog.FormatSize(r.Bytes), r.Hits(), r.Misses, models)
	}
	return w.Flush()
}

func hex16(sig uint64) string { return fmt.Sprintf("%016x", sig) }

// sigUser is who uses a signature, and what the cache did for them together.
type sigUser struct {
	models []string
	stats  mmstats.Stats
}

// signatures are the models of the published catalog by signature.
func signatures(ctx context.Context, o state.Options) (map[uint64]sigUser, error) {
	store, err := state.Open(o)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	_, raw, err := store.Catalog(ctx)
	if err != nil || len(raw) == 0 {
		return nil, err
	}
	cat, err := catalog.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	counters, err := store.Stats(ctx)
	if err != nil {
		return nil, err
	}
	tallies := mmstats.ReadStats(counters)
	out := map[uint64]sigUser{}
	for _, m := range cat.Models {
		if m.MMProj != "" {
			u := out[m.Signature()]
			out[m.Signature()] = sigUser{append(u.models, m.ID), u.stats.Plus(tallies[m.ID])}
		}
	}
	return out, nil
}
