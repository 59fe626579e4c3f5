package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"reveille/infra/policy"
)

// NotFoundError means that a name belongs to no model.
type NotFoundError struct {
	Name string // as requested, cut if overlong
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("no model is named %q", e.Name) }

// AmbiguousError means that a name fits several models equally well.
type AmbiguousError struct {
	Name       string
	Candidates []string // ids, sorted; at least two
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%q may be any of the models %s", e.Name, strings.Join(e.Candidates, ", "))
}

// index is the lookup table for names; built once, read only.
type index struct {
	byID        map[string]*Model
	hosts       map[string]*Host
	names       map[string]string   // id or alias -> id
	folded      map[string][]string // the same in lower case -> ids
	checkpoints map[string][]string // names of checkpoints -> ids
}

func (c *Catalog) buildIndex() {
	x := index{
		byID: make(map[string]*Model, len(c.Models)), hosts: make(map[string]*Host, len(c.Hosts)),
		names: map[string]string{}, folded: map[string][]string{}, checkpoints: map[string][]string{},
	}
	for _, h := range c.Hosts {
		x.hosts[h.Name] = h
	}
	for _, m := range c.Models {
		x.byID[m.ID] = m
		for _, n := range append([]string{m.ID}, m.Aliases...) { // the check has made them unique
			x.names[n] = m.ID
			put(x.folded, fold(n), m.ID)
		}
		for _, n := range ParseCheckpoint(m.Checkpoint).Names() {
			put(x.checkpoints, n, m.ID)
		}
	}
	c.index = x
}

func put(m map[string][]string, key, id string) {
	if !slices.Contains(m[key], id) {
		m[key] = append(m[key], id)
	}
}

// Resolve turns the name in a request into a model's id. The first step with a hit decides:
//
//  1. the canonical id;
//  2. an alias;
//  3. the same after one trailing ":latest" was dropped;
//  4. "provider/name" as "name", and "user.name", "extra.name" or "builtin.name" for "name" and the other way round;
//  5. the checkpoint as "org/repo:quant" or "org/repo";
//  6. steps 1 to 3 without regard to the case of ASCII letters.
//
// If more than one model fits at one of the last three steps, the error is an [*AmbiguousError]. If none fits at any
// step, it is a [*NotFoundError].
func (c *Catalog) Resolve(name string) (id string, err error) {
	if id, ok := c.exact(name); ok {
		return id, nil
	}
	const longest = 2 * maxName // a provider or a registry before a name
	if name == "" || len(name) > longest {
		return "", &NotFoundError{clip(name)}
	}
	for _, step := range [...]func(string) []string{c.byPrefix, c.byCheckpoint, c.byFold} {
		switch ids := step(name); len(ids) {
		case 0:
		case 1:
			return ids[0], nil
		default:
			slices.Sort(ids)
			return "", &AmbiguousError{clip(name), ids}
		}
	}
	return "", &NotFoundError{clip(name)}
}

// WithNames returns the catalog with further names for its models, which act like aliases. Each leads to what its
// target resolves to. It skips names that lead nowhere, and those that the catalog already has. c is not changed.
func (c *Catalog) WithNames(extra map[string]string) *Catalog {
	out := *c
	x := &out.index
	x.names, x.folded = maps.Clone(x.names), maps.Clone(x.folded)
	for name, target := range extra {
		if _, taken := c.index.names[name]; taken {
			continue
		}
		if id, err := c.Resolve(target); err == nil {
			x.names[name] = id
			low := fold(name)
			x.folded[low] = slices.Clone(x.folded[low]) // c has it, too
			put(x.folded, low, id)
		}
	}
	return &out
}

// Default returns the id of the model for requests that name none, on a route of type t. ok is false if the operator
// set none.
func (c *Catalog) Default(t policy.Type) (id string, ok bool) {
	id, ok = c.Defaults.Models[t]
	return id, ok
}

const latest = ":latest"

// SameName reports whether two names are the same but for their case and a tag ":latest".
func SameName(a, b string) bool {
	return strings.TrimSuffix(fold(a), latest) == strings.TrimSuffix(fold(b), latest)
}

// exact is steps 1 to 3.
func (c *Catalog) exact(name string) (id string, ok bool) {
	if id, ok = c.index.names[name]; ok {
		return id, true
	}
	if short, found := strings.CutSuffix(name, latest); found {
		id, ok = c.index.names[short]
	}
	return id, ok
}

// Spaces start names that stand for those without them, and the other way round.
var Spaces = [...]string{"user.", "extra.", "builtin."}

// byPrefix is step 4. Each reading of the name goes through steps 1 to 3.
func (c *Catalog) byPrefix(name string) []string {
	var ids []string
	try := func(n string) {
		if id, ok := c.exact(n); ok && n != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if _, rest, ok := strings.Cut(name, "/"); ok {
		try(rest)
	}
	for _, space := range Spaces {
		if rest, ok := strings.CutPrefix(name, space); ok {
			try(rest)
		} else {
			try(space + name)
		}
	}
	return ids
}

// byCheckpoint is step 5.
func (c *Catalog) byCheckpoint(name string) []string { return slices.Clone(c.index.checkpoints[name]) }

// byFold is step 6.
func (c *Catalog) byFold(name string) []string {
	low := fold(name)
	ids := slices.Clone(c.index.folded[low])
	if short, ok := strings.CutSuffix(low, latest); ok {
		for _, id := range c.index.folded[short] {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// fold puts ASCII letters into lower case; names contain no others.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + ('a' - 'A')
		}
		return r
	}, s)
}
