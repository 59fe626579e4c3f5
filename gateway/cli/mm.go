package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/mmcache"
	"reveille/infra/state"
)

// MM is `gateway mm`: what the encoder cache holds in Redis.
type MM struct {
	config.Redis
	JSON bool `help:"Print it as JSON."`
}

// mmTimeout bounds one call: the list walks through the keys of the database.
const mmTimeout = 10 * time.Second

type mmRow struct {
	Signature string   `json:"signature"`
	Models    []string `json:"models"`
	Media     int      `json:"media"`
	Bytes     int64    `json:"bytes"`
}

// Run lists signatures with the models that have them, largest first.
func (c *MM) Run(ctx context.Context, out io.Writer) error {
	o := state.Options{URL: c.RedisURL, Pool: c.Pool, Timeout: mmTimeout}
	rdb, err := state.Client(o)
	if err != nil {
		return err
	}
	defer rdb.Close()
	usage, err := mmcache.List(ctx, rdb)
	if err != nil {
		return err
	}
	names, err := signatures(ctx, o)
	if err != nil {
		return err
	}
	rows := make([]mmRow, 0, len(usage))
	for _, u := range usage {
		rows = append(rows, mmRow{hex16(u.Signature), append([]string{}, names[u.Signature]...), u.Entries, u.Bytes})
	}
	if c.JSON {
		return print(out, rows)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SIGNATURE\tMEDIA\tSIZE\tMODELS")
	for _, r := range rows {
		models := strings.Join(r.Models, ", ")
		if models == "" {
			models = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", r.Signature, r.Media, catalog.FormatSize(r.Bytes), models)
	}
	return w.Flush()
}

func hex16(sig uint64) string { return fmt.Sprintf("%016x", sig) }

// signatures are the models of the published catalogue by signature.
func signatures(ctx context.Context, o state.Options) (map[uint64][]string, error) {
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
	out := map[uint64][]string{}
	for _, m := range cat.Models {
		if m.MMProj != "" {
			out[m.Signature()] = append(out[m.Signature()], m.ID)
		}
	}
	return out, nil
}
