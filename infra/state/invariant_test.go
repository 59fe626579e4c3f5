package state_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// picture holds all keys of a pool, without the prefix.
type picture struct {
	hashes  map[string]map[string]string
	lists   map[string][]string
	sets    map[string][]string
	zsets   map[string]map[string]int64
	strings map[string]string
}

func (h *history) picture() *picture {
	p := &picture{map[string]map[string]string{}, map[string][]string{}, map[string][]string{}, map[string]map[string]int64{}, map[string]string{}}
	keys, err := h.rdb.Keys(ctx, "*").Result()
	must(h.t, err)
	for _, full := range keys {
		k := strings.TrimPrefix(full, prefix)
		typ, err := h.rdb.Type(ctx, full).Result()
		must(h.t, err)
		switch typ {
		case "hash":
			p.hashes[k], err = h.rdb.HGetAll(ctx, full).Result()
		case "list":
			p.lists[k], err = h.rdb.LRange(ctx, full, 0, -1).Result()
		case "set":
			p.sets[k], err = h.rdb.SMembers(ctx, full).Result()
			slices.Sort(p.sets[k])
		case "string":
			p.strings[k], err = h.rdb.Get(ctx, full).Result()
		case "zset":
			p.zsets[k] = map[string]int64{}
			members, zerr := h.rdb.ZRangeWithScores(ctx, full, 0, -1).Result()
			err = zerr
			for _, m := range members {
				p.zsets[k][m.Member.(string)] = int64(m.Score)
			}
		}
		must(h.t, err)
	}
	return p
}

// inputs returns what decisions about a host depend on. Whenever it changes, the host's revision must rise.
func (p *picture) inputs(host string) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p.hashes)) {
		f := p.hashes[k]
		switch {
		case k == "host:"+host:
			fmt.Fprintln(&out, k, f["state"], f["loading"])
		case strings.HasPrefix(k, "model:"+host+":"):
			fmt.Fprintln(&out, k, f["state"], f["type"])
		case strings.HasPrefix(k, "ticket:") && f["host"] == host:
			fmt.Fprintln(&out, k, f["state"])
		}
	}
	fmt.Fprintln(&out, p.lists["queue:"+host], p.hashes["catalog"]["version"])
	return out.String()
}

// places returns where a model is loaded or its load is queued. Whenever there is a new place, the model's revision
// must rise.
func (p *picture) places(model string) []string {
	var out []string
	for k, f := range p.hashes {
		if strings.HasPrefix(k, "ticket:") && f["kind"] == "load" && f["model"] == model && (f["state"] == "queued" || f["state"] == "loading") ||
			strings.HasPrefix(k, "model:") && strings.HasSuffix(k, ":"+model) {
			out = append(out, k)
		}
	}
	return out
}

// checkRevisions compares with the previous check.
func (h *history) checkRevisions(p *picture) {
	h.t.Helper()
	was, is := h.seen.hashes["revs"], p.hashes["revs"]
	if was["pool"] != is["pool"] {
		return
	}
	for _, host := range h.hosts {
		if h.seen.hashes["host:"+host]["rev"] == p.hashes["host:"+host]["rev"] && h.seen.inputs(host) != p.inputs(host) {
			h.fail("inputs of decisions about %s changed under one revision from\n%s\nto\n%s", host, h.seen.inputs(host), p.inputs(host))
		}
	}
	for _, model := range h.models {
		before := h.seen.places(model)
		for _, place := range p.places(model) {
			if was["m:"+model] == is["m:"+model] && !slices.Contains(before, place) {
				h.fail("model %s appeared on %s without a new revision", model, place)
			}
		}
	}
}

// check checks Redis against every invariant in DESIGN.md of this folder.
func (h *history) check() {
	h.t.Helper()
	p := h.picture()
	h.checkTickets(p)
	h.checkHosts(p)
	h.checkSnapshot(p)
	for _, counter := range []string{"rev", "token"} {
		n, err := strconv.ParseUint(p.strings[counter], 10, 64)
		if err == nil && n < h.highest[counter] { // missing: emptied, nothing written since
			h.fail("%s fell from %d to %d", counter, h.highest[counter], n)
		}
		h.highest[counter] = max(h.highest[counter], n)
	}
	if h.seen != nil {
		h.checkRevisions(p)
	}
	h.seen = p
}

func (h *history) checkTickets(p *picture) {
	h.t.Helper()
	shared := map[string]string{}
	for k, t := range p.hashes {
		id, ok := strings.CutPrefix(k, "ticket:")
		if !ok {
			continue
		}
		queued := count(p.lists["queue:"+t["host"]], id)
		begun := count(p.sets["begun:"+t["host"]], id)
		ttl, err := h.rdb.PTTL(ctx, prefix+k).Result()
		must(h.t, err)
		pending := t["state"] == "queued" || t["state"] == "loading"
		switch {
		case t["state"] == "queued" && (queued != 1 || begun != 0):
			h.fail("queued ticket %s is %d times in the queue, %d times begun", id, queued, begun)
		case t["state"] == "loading" && (queued != 0 || begun != 1):
			h.fail("begun ticket %s is %d times in the queue, %d times begun", id, queued, begun)
		case t["state"] == "loading" && t["kind"] == "load" && p.hashes["host:"+t["host"]]["loading"] != id:
			h.fail("load %s is in progress but is not its host's", id)
		case !pending && queued+begun != 0:
			h.fail("ended ticket %s is in a queue", id)
		case pending && ttl >= 0:
			h.fail("ticket %s expires before its end", id)
		case !pending && ttl < 0:
			h.fail("ended ticket %s is never removed", id)
		}
		if pending && !h.own[id] {
			if other := shared[t["model"]]; other != "" {
				h.fail("model %s has two tickets: %s and %s", t["model"], id, other)
			}
			shared[t["model"]] = id
		}
	}
	if w := p.hashes["wanted"]; !maps.Equal(w, shared) && len(w)+len(shared) > 0 {
		h.fail("wanted is %v, tickets are %v", w, shared)
	}
	for k, ids := range p.lists {
		for _, id := range ids {
			if p.hashes["ticket:"+id]["host"] != strings.TrimPrefix(k, "queue:") {
				h.fail("%s holds %s, which is not its host's", k, id)
			}
		}
	}
	for k := range p.zsets {
		if id, ok := strings.CutPrefix(k, "waiters:"); ok && p.hashes["ticket:"+id] == nil {
			h.fail("waiters of no ticket: %s", id)
		}
	}
}

func (h *history) checkHosts(p *picture) {
	h.t.Helper()
	for _, name := range h.hosts {
		host := p.hashes["host:"+name]
		models, begun := p.sets["models:"+name], p.sets["begun:"+name]
		if host["loading"] != "" && !slices.Contains(begun, host["loading"]) {
			h.fail("%s loads %s, which has not begun", name, host["loading"])
		}
		if st := host["state"]; st != "ready" && st != "draining" && len(models)+len(begun) > 0 {
			h.fail("%s is %q and holds %v, begun %v", name, st, models, begun)
		}
		if host != nil && !slices.Contains(p.sets["hosts"], name) {
			h.fail("%s is missing from hosts", name)
		}
		var records, ranked []string
		for k := range p.hashes {
			if m, ok := strings.CutPrefix(k, "model:"+name+":"); ok {
				records = append(records, m)
			}
		}
		for k, z := range p.zsets {
			typ, ok := strings.CutPrefix(k, "lru:"+name+":")
			for m, used := range z {
				if !ok {
					break
				}
				ranked = append(ranked, m)
				if r := p.hashes["model:"+name+":"+m]; r["type"] != typ {
					h.fail("%s in %s at %d, its record says %v", m, k, used, r)
				}
			}
		}
		slices.Sort(records)
		slices.Sort(ranked)
		for _, m := range h.models {
			has := p.hashes["model:"+name+":"+m] != nil || slices.ContainsFunc(slices.Concat(p.lists["queue:"+name], begun), func(id string) bool {
				return p.hashes["ticket:"+id]["model"] == m
			})
			load := slices.ContainsFunc(p.places(m), func(place string) bool {
				return place == "model:"+name+":"+m || p.hashes[place]["host"] == name
			})
			if listed := slices.Contains(p.sets["copies:"+m], name); load && !listed || listed && !has {
				h.fail("%s: models %v, copies of %s %v", name, models, m, p.sets["copies:"+m])
			}
		}
		if !slices.Equal(records, models) || !slices.Equal(ranked, models) {
			h.fail("%s: models %v, records %v, LRU %v", name, models, records, ranked)
		}
	}
}

// checkSnapshot checks that a snapshot shows the content of the keys.
func (h *history) checkSnapshot(p *picture) {
	h.t.Helper()
	snap, err := h.s.Snapshot(ctx)
	if err != nil {
		h.fail("snapshot: %v", err)
	}
	if len(snap.Hosts) != len(p.sets["hosts"]) {
		h.fail("snapshot has %d hosts of %v", len(snap.Hosts), p.sets["hosts"])
	}
	for name, host := range snap.Hosts {
		if len(host.Models) != len(p.sets["models:"+name]) || len(host.Queue) != len(p.lists["queue:"+name])+len(p.sets["begun:"+name]) {
			h.fail("snapshot of %s: %+v", name, host)
		}
		if host.Loading != "" && host.Queue[0].ID != host.Loading {
			h.fail("the load in progress does not head the queue of %s", name)
		}
	}
}

func count(list []string, item string) int {
	n := 0
	for _, x := range list {
		if x == item {
			n++
		}
	}
	return n
}
