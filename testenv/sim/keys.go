package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"reveille/infra/state"
	"reveille/testenv/check"
)

// keys is what Redis holds of a pool, by key without the pool's prefix.
type keys struct {
	hashes map[string]map[string]string
	lists  map[string][]string
	sets   map[string][]string
	zsets  map[string][]string // members
}

// readKeys reads all of them. Nothing may be running.
func (w *world) readKeys() *keys {
	k := &keys{map[string]map[string]string{}, map[string][]string{}, map[string][]string{}, map[string][]string{}}
	for _, full := range w.redis.Keys() {
		name := strings.TrimPrefix(full, prefix)
		switch w.redis.Type(full) {
		case "hash":
			k.hashes[name] = map[string]string{}
			fields, _ := w.redis.HKeys(full)
			for _, f := range fields {
				k.hashes[name][f] = w.redis.HGet(full, f)
			}
		case "list":
			k.lists[name], _ = w.redis.List(full)
		case "set":
			k.sets[name], _ = w.redis.SMembers(full)
		case "zset":
			members, _ := w.redis.SortedSet(full)
			k.zsets[name] = slices.Sorted(maps.Keys(members))
		}
	}
	return k
}

// inputs are what decisions about a host depend on. Whenever they change, the host's revision must rise.
func (k *keys) inputs(host string) string {
	rec := k.hashes["host:"+host]
	lines := []string{fmt.Sprint(rec["state"], " ", rec["loading"])}
	for name, f := range k.hashes {
		if model, ok := strings.CutPrefix(name, "model:"+host+":"); ok {
			lines = append(lines, fmt.Sprint(model, " ", f["state"], " ", f["type"]))
		}
		if id, ok := strings.CutPrefix(name, "ticket:"); ok && f["host"] == host && f["state"] == "loading" {
			lines = append(lines, fmt.Sprint("begun ", id))
		}
	}
	slices.Sort(lines[1:])
	return fmt.Sprint(strings.Join(lines, "\n"), "\n", append([]string{}, k.lists["queue:"+host]...))
}

// mirrored are the same as a mirror has them.
func mirrored(h *state.HostRecord) string {
	lines := []string{fmt.Sprint(h.Fields["state"], " ", h.Loading)}
	for id, m := range h.Models {
		lines = append(lines, fmt.Sprint(id, " ", m.State, " ", m.Type))
	}
	queue := []string{}
	for _, t := range h.Queue {
		if t.State == "loading" {
			lines = append(lines, fmt.Sprint("begun ", t.ID))
		} else {
			queue = append(queue, t.ID)
		}
	}
	slices.Sort(lines[1:])
	return fmt.Sprint(strings.Join(lines, "\n"), "\n", queue)
}

// places are the records of a model and the tickets of its loads, each with its host. A new one must raise the model's
// revision.
func (k *keys) places(model string) map[string]string {
	out := map[string]string{}
	for name, f := range k.hashes {
		if strings.HasPrefix(name, "ticket:") && f["kind"] == "load" && f["model"] == model && pending(f) {
			out[name] = f["host"]
		}
		if place, ok := strings.CutPrefix(name, "model:"); ok && strings.HasSuffix(place, ":"+model) {
			out[name] = strings.TrimSuffix(place, ":"+model)
		}
	}
	return out
}

func pending(ticket map[string]string) bool {
	return ticket["state"] == "queued" || ticket["state"] == "loading"
}

// judgeKeys holds what Redis has to what every script keeps: a ticket has one place, the sets and the use times agree
// with the records, what has ended expires, and what a decision depends on never changes under one revision.
func (w *world) judgeKeys() {
	k := w.readKeys()
	faults := append(w.tickets(k), w.hosts(k)...)
	if w.keys != nil {
		faults = append(faults, w.revisions(w.keys, k)...)
	}
	if w.calm() {
		faults = append(faults, w.mirrors(k)...)
	}
	if w.group != nil {
		faults = append(faults, w.group.faults(k)...)
	}
	w.keys = k
	w.record(check.Event{Kind: check.Keys, Text: strings.Join(faults, "; ")})
}

func (w *world) tickets(k *keys) (faults []string) {
	for name, t := range k.hashes {
		id, ok := strings.CutPrefix(name, "ticket:")
		if !ok {
			continue
		}
		queued := slices.Contains(k.lists["queue:"+t["host"]], id)
		begun := slices.Contains(k.sets["begun:"+t["host"]], id)
		if queued != (t["state"] == "queued") || begun != (t["state"] == "loading") {
			faults = append(faults, fmt.Sprintf("ticket %s is %s, in the queue %v, begun %v", id, t["state"], queued, begun))
		}
		if t["state"] == "loading" && t["kind"] == "load" && k.hashes["host:"+t["host"]]["loading"] != id {
			faults = append(faults, fmt.Sprintf("load %s is in progress but is not its host's", id))
		}
		if expires := w.redis.TTL(prefix+name) > 0; expires == pending(t) {
			faults = append(faults, fmt.Sprintf("ticket %s is %s, and expires: %v", id, t["state"], expires))
		}
	}
	for model, id := range k.hashes["wanted"] {
		if t := k.hashes["ticket:"+id]; !pending(t) || t["model"] != model || t["kind"] != "load" {
			faults = append(faults, fmt.Sprintf("%s is wanted by %s, which is %v", model, id, t))
		}
	}
	for name, ids := range k.lists {
		host, ok := strings.CutPrefix(name, "queue:")
		for i, id := range ids {
			if ok && (k.hashes["ticket:"+id]["host"] != host || slices.Contains(ids[:i], id)) {
				faults = append(faults, fmt.Sprintf("%s holds %v", name, ids))
			}
		}
	}
	for name := range k.zsets {
		if id, ok := strings.CutPrefix(name, "waiters:"); ok && k.hashes["ticket:"+id] == nil {
			faults = append(faults, "waiters of no ticket: "+id)
		}
	}
	return faults
}

func (w *world) hosts(k *keys) (faults []string) {
	for i := range w.runners {
		name := w.scenario.hostName(i + 1)
		host, models, begun := k.hashes["host:"+name], k.sets["models:"+name], k.sets["begun:"+name]
		if host["loading"] != "" && !slices.Contains(begun, host["loading"]) {
			faults = append(faults, fmt.Sprintf("%s loads %s, which has not begun", name, host["loading"]))
		}
		if st := host["state"]; st != "ready" && st != "draining" && len(models)+len(begun) > 0 {
			faults = append(faults, fmt.Sprintf("%s is %q and holds %v, begun %v", name, st, models, begun))
		}
		if host != nil && !slices.Contains(k.sets["hosts"], name) {
			faults = append(faults, name+" is missing from hosts")
		}
		var records, ranked []string
		for key, f := range k.hashes {
			if m, ok := strings.CutPrefix(key, "model:"+name+":"); ok {
				records = append(records, m)
				if slices.Contains(k.zsets["lru:"+name+":"+f["type"]], m) {
					ranked = append(ranked, m)
				}
			}
		}
		slices.Sort(records)
		slices.Sort(ranked)
		uses := 0
		for key, members := range k.zsets {
			if strings.HasPrefix(key, "lru:"+name+":") {
				uses += len(members)
			}
		}
		if !slices.Equal(records, models) || !slices.Equal(ranked, models) || uses != len(models) {
			faults = append(faults, fmt.Sprintf("%s: models %v, records %v, of which have use times %v of %d", name, models, records, ranked, uses))
		}
		for _, m := range w.models().Models {
			listed := slices.Contains(k.sets["copies:"+m.ID], name)
			if there := slices.Contains(slices.Collect(maps.Values(k.places(m.ID))), name); there != listed {
				unloading := slices.ContainsFunc(slices.Concat(k.lists["queue:"+name], begun), func(id string) bool {
					return k.hashes["ticket:"+id]["model"] == m.ID
				})
				if there || !unloading {
					faults = append(faults, fmt.Sprintf("%s has %s: %v, is listed among its copies: %v", name, m.ID, there, listed))
				}
			}
		}
	}
	return faults
}

// mirrors compares with what gateways have, whose events may be lost, doubled and out of order: under Redis' revision
// of a host they have what Redis has.
func (w *world) mirrors(k *keys) (faults []string) {
	epoch, _ := w.redis.Get(prefix + "epoch")
	for _, g := range w.gateways {
		l := g.current()
		if l == nil {
			continue
		}
		snap := l.mirror.Snapshot()
		for name, host := range snap.Hosts {
			rec := k.hashes["host:"+name]
			if rec != nil && snap.Epoch == epoch && host.Fields["rev"] == rec["rev"] && mirrored(host) != k.inputs(name) {
				faults = append(faults, fmt.Sprintf("under revision %s of %s %s has\n%s\nand Redis\n%s", rec["rev"], name, l.id, mirrored(host), k.inputs(name)))
			}
		}
	}
	return faults
}

// revisions compares with the keys of the look before.
func (w *world) revisions(was, is *keys) (faults []string) {
	before, now := was.hashes["revs"], is.hashes["revs"]
	if before["pool"] != now["pool"] {
		return nil
	}
	for i := range w.runners {
		name := w.scenario.hostName(i + 1)
		if was.hashes["host:"+name]["rev"] == is.hashes["host:"+name]["rev"] && was.inputs(name) != is.inputs(name) {
			faults = append(faults, fmt.Sprintf("inputs of decisions about %s changed under one revision, from\n%s\nto\n%s",
				name, was.inputs(name), is.inputs(name)))
		}
	}
	for _, m := range w.models().Models {
		old := was.places(m.ID)
		for place := range is.places(m.ID) {
			if _, known := old[place]; !known && before["m:"+m.ID] == now["m:"+m.ID] {
				faults = append(faults, fmt.Sprintf("%s has %s without a new revision", m.ID, place))
			}
		}
	}
	return faults
}
