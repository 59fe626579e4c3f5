package state_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// keyTable reads the table in doc.go: a pattern for each key, and its Redis type.
func keyTable(t *testing.T) map[*regexp.Regexp]string {
	t.Helper()
	src, err := os.ReadFile("doc.go")
	must(t, err)
	row := regexp.MustCompile(`(?m)^//\trv:\{pool\}:(\S+)\s+(string|set|hash|sorted set|list|channel)\s`)
	placeholder := regexp.MustCompile(`<[a-z]+>`)
	table := map[*regexp.Regexp]string{}
	for _, m := range row.FindAllStringSubmatch(string(src), -1) {
		pattern := placeholder.ReplaceAllString(regexp.QuoteMeta(m[1]), `[^:]+`)
		table[regexp.MustCompile("^"+regexp.QuoteMeta(prefix)+pattern+"$")] = strings.ReplaceAll(m[2], "sorted set", "zset")
	}
	return table
}

// TestKeyTable checks that after a busy scenario every key matches one row of the table in doc.go, by name and type,
// and that every row was used.
func TestKeyTable(t *testing.T) {
	table := keyTable(t)
	used := map[*regexp.Regexp]bool{}
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		_, err := s.PutCatalog(ctx, "v", []byte("{}"), map[string]string{"sleeper": "wol"})
		must(t, err)
		must(t, s.Set(ctx, state.Pins, "m", "1"))
		g, _, err := s.Register(ctx, state.HostInfo{Name: "h", Models: []state.ModelPut{{ID: "m", Fields: map[string]string{"type": "llm", "device": "npu"}}}})
		must(t, err)
		w := want(t, s, "gw", "m1", "h")
		w.Operation = "op"
		must(t, s.Begin(ctx, "h", g, acquire(t, s, w).Ticket, state.NPUSeat{}))
		acquire(t, s, want(t, s, "gw", "m2", "h"))
		acquire(t, s, want(t, s, "gw", "m3", "sleeper"))
		must(t, s.DropModel(ctx, "h", g, "x", "", true))
		must(t, s.PutResponse(ctx, "ann", "r1", []byte("{}"), time.Minute))
		must(t, s.PutConversations(ctx, "m", "h", state.Conversations{}))
		usage := state.NewUsageReporter(s)
		usage.Share("a1")
		usage.Spend("a1", 1)
		usage.Count("x", 1)
		usage.CountUse("m", "k", time.Second, 1, 1)
		must(t, s.CountHours(ctx, time.Minute, nil))
		must(t, s.LeaseGroup(ctx, "g", "me", time.Minute))
		must(t, usage.Flush(ctx))
		keys, err := b.rdb.Keys(ctx, "*").Result()
		must(t, err)
		for _, k := range keys {
			typ, err := b.rdb.Type(ctx, k).Result()
			must(t, err)
			rows := 0
			for pattern, want := range table {
				if pattern.MatchString(k) {
					rows++
					used[pattern] = true
					equal(t, "type of "+k, typ, want)
				}
			}
			equal(t, "rows of the table for "+k, rows, 1)
		}
	})
	for pattern, typ := range table {
		if !used[pattern] && typ != "channel" {
			t.Errorf("no key matches the row %s", pattern)
		}
	}
}
