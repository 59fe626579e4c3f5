package catalog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// reader turns a models.yaml into a draft of a catalogue. The draft need not be consistent yet: names stay as written,
// and the checker resolves them.
type reader struct {
	nodes
	draft draft
}

// draft is a catalogue whose parts were read but not checked against each other.
type draft struct {
	Catalog
	brokenRecipes map[string]bool // recipes of the file that are refused: models that use them get no problem for it
}

func (r *reader) file(root ast.Node) {
	d := &r.draft
	var recipes []field
	r.object(root, "", schema{
		{"defaults", r.defaults},
		{"models", func(n ast.Node, p yamlPath) {
			r.each(n, p, func(f field, at yamlPath) { d.Models = append(d.Models, r.model(f.key, f.value, at)) })
		}},
		{"recipes", func(n ast.Node, p yamlPath) {
			r.each(n, p, func(f field, _ yamlPath) { recipes = append(recipes, f) })
		}},
		{"hosts", func(n ast.Node, p yamlPath) {
			r.each(n, p, func(f field, at yamlPath) { d.Hosts = append(d.Hosts, r.host(f.key, f.value, at)) })
		}},
		{"warm", r.warm},
	})
	r.recipes(recipes)
}

func (r *reader) defaults(n ast.Node, p yamlPath) {
	d := &r.draft.Defaults
	r.object(n, p, schema{
		{"idle", r.optionalDuration(&d.Idle)},
		{"models", func(n ast.Node, p yamlPath) {
			r.each(n, p, func(f field, at yamlPath) {
				var name string
				if r.text(&name)(f.value, at); name == "" {
					return
				}
				if d.Models == nil {
					d.Models = map[policy.Type]string{}
				}
				d.Models[policy.Type(f.key)] = name
			})
		}},
	})
}

func (r *reader) model(id string, n ast.Node, p yamlPath) *Model {
	m := &Model{ID: id, Replicas: Replicas{Max: 1}, MMCache: SharePerKey}
	var typ, cache, conversations string
	var options map[string]any
	r.object(n, p, schema{
		{"type", r.text(&typ)},
		{"recipe", r.text(&m.Recipe)},
		{"checkpoint", r.text(&m.Checkpoint)},
		{"sha256", r.text(&m.SHA256)},
		{"mmproj", r.text(&m.MMProj)},
		{"aliases", r.texts(&m.Aliases)},
		{"device", r.devices(&m.Devices, &m.Cards)},
		{"gpus", r.integer(&m.GPUs, 1)},
		{"options", r.options(&options)},
		{"pin", r.boolean(&m.Pin)},
		{"idle", r.optionalDuration(&m.Idle)},
		{"hosts", r.texts(&m.Hosts)},
		{"fallback", r.texts(&m.Fallback)},
		{"replicas", func(n ast.Node, p yamlPath) {
			r.object(n, p, schema{{"max", r.integer(&m.Replicas.Max, 1)}})
		}},
		{"memory", r.size(&m.Memory)},
		{"mm_cache", r.text(&cache)},
		{"conversations", r.text(&conversations)},
		{"dimensions", r.boolean(&m.Dimensions)},
		{"normalize_scores", r.boolean(&m.NormalizeScores)},
		{"labels", r.texts(&m.Labels)},
		{"description", r.text(&m.Description)},
	})
	m.Type = policy.Type(typ)
	m.Options = options
	m.Conversations = Sharing(conversations)
	if cache != "" {
		m.MMCache = Sharing(cache)
	}
	return m
}

func (r *reader) host(name string, n ast.Node, p yamlPath) *Host {
	h := &Host{Name: name}
	var driver string
	r.object(n, p, schema{
		{"driver", r.text(&driver)},
		{"devices", r.devices(&h.Devices, nil)},
		{"memory", func(n ast.Node, p yamlPath) {
			r.each(n, p, func(f field, at yamlPath) {
				var size int64
				r.size(&size)(f.value, at)
				if h.Memory == nil {
					h.Memory = map[string]int64{}
				}
				h.Memory[f.key] = size
			})
		}},
		{"labels", r.texts(&h.Labels)},
		{"mac", r.text(&h.MAC)},
		{"broadcast", r.text(&h.Broadcast)},
		{"address", r.text(&h.Address)},
		{"group", r.text(&h.Group)},
		{"max", r.integer(&h.Max, 1)},
		{"instance", r.text(&h.Instance)},
		{"hibernate", r.boolean(&h.Hibernate)},
		{"region", r.text(&h.Region)},
		{"workload", r.text(&h.Workload)},
		{"namespace", r.text(&h.Namespace)},
		{"commands", func(n ast.Node, p yamlPath) {
			h.Commands = &Commands{}
			r.object(n, p, schema{
				{"wake", r.texts(&h.Commands.Wake)},
				{"sleep", r.texts(&h.Commands.Sleep)},
				{"state", r.texts(&h.Commands.State)},
			})
		}},
		{"npu_seats", func(n ast.Node, p yamlPath) {
			r.each(n, p, func(f field, at yamlPath) {
				seats := 1
				r.integer(&seats, 0)(f.value, at)
				if h.NPUSeats == nil {
					h.NPUSeats = map[policy.Type]int{}
				}
				h.NPUSeats[policy.Type(f.key)] = seats
			})
		}},
		{"price", r.amount(&h.Price)},
	})
	h.Driver = Driver(driver)
	return h
}

func (r *reader) warm(n ast.Node, p yamlPath) {
	seq, ok := r.value(n, p).(*ast.SequenceNode)
	if !ok {
		if n = r.value(n, p); n != nil {
			r.add(p, "", "want a list, not %s", kind(n))
		}
		return
	}
	for i, item := range seq.Values {
		at := p.index(i)
		r.at[at] = positionOf(item)
		var w Warmup
		var schedule string
		r.object(item, at, schema{
			{"model", r.text(&w.Model)},
			{"schedule", r.text(&schedule)},
			{"for", r.duration(&w.For)},
		})
		if schedule != "" {
			var err error
			if w.Schedule, err = parseSchedule(schedule); err != nil {
				r.add(at.child("schedule"), `five fields as in cron, such as "0 8 * * 1-5"`, "%v", err)
			}
		} else {
			r.add(at, "", "schedule is missing")
		}
		r.draft.Warm = append(r.draft.Warm, w)
	}
}

// devices reads names of devices, and those of single GPUs ("gpu:1") into cards, which is nil if none are allowed.
func (r *reader) devices(dst *policy.Devices, cards *[]int) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		var names []string
		r.texts(&names)(n, p)
		for i, name := range names {
			if card, ok := cardIndex(name); ok && cards != nil {
				*dst |= policy.GPU
				if !slices.Contains(*cards, card) {
					*cards = append(*cards, card)
				}
				continue
			}
			d, err := policy.ParseDevices(name)
			if err != nil {
				at := p
				if _, listed := r.at[p.index(i)]; listed {
					at = p.index(i)
				}
				r.add(at, didYouMean(name, []string{"cpu", "gpu", "npu"}), "unknown device %q", clip(name))
			}
			*dst |= d
		}
	}
}

// cardIndex reads the name of a single GPU.
func cardIndex(name string) (int, bool) {
	text, ok := strings.CutPrefix(name, "gpu:")
	n, err := strconv.ParseUint(text, 10, 8)
	return int(n), ok && err == nil && n < policy.MaxGPUs
}

// options reads a mapping to scalars. The checker decides which of them a recipe accepts.
func (r *reader) options(dst *map[string]any) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		r.each(n, p, func(f field, at yamlPath) {
			v := r.value(f.value, at)
			if v == nil {
				return // absent: the next lower source counts
			}
			scalar := scalarValue(v)
			if scalar == nil {
				r.add(at, "", "want a number, a text, true or false, not %s", kind(v))
				return
			}
			if *dst == nil {
				*dst = map[string]any{}
			}
			(*dst)[f.key] = scalar
		})
	}
}

// recipes applies the file's recipes over the shipped ones. Invalid ones are left out of the draft and reported.
func (r *reader) recipes(entries []field) {
	d := &r.draft
	d.brokenRecipes = map[string]bool{}
	over := make(map[string]recipe.Recipe, len(entries))
	for _, f := range entries {
		rec, err := r.recipe(f)
		if err != nil {
			r.addYAMLError(recipePath(f.key), err)
			d.brokenRecipes[f.key] = true
			continue
		}
		over[f.key] = rec
	}
	// Two rounds: without the recipes that the first one refuses, the second can only miss one that was to be
	// inherited.
	for range 2 {
		set, err := recipe.Shipped().With(over)
		if err == nil {
			d.Recipes = set
			return
		}
		for _, e := range flatten(err) {
			name, text := r.blame(e, slices.Sorted(maps.Keys(over)))
			r.add(recipePath(name), "", "%s", text)
			d.brokenRecipes[name] = true
		}
		maps.DeleteFunc(over, func(name string, _ recipe.Recipe) bool { return d.brokenRecipes[name] })
	}
	d.Recipes = recipe.Shipped()
	for name := range over {
		d.brokenRecipes[name] = true
	}
}

func (r *reader) recipe(f field) (rec recipe.Recipe, err error) {
	defer func() { // as in parseYAML
		if v := recover(); v != nil {
			err = errors.New("cannot be read")
		}
	}()
	if n := r.value(f.value, recipePath(f.key)); n != nil {
		err = yaml.NodeToValue(n, &rec, yaml.Strict())
	}
	rec.Name = f.key
	return rec, err
}

// blame finds the recipe that an error of package recipe is about; those errors begin with "recipe NAME: ".
func (r *reader) blame(err error, names []string) (name, text string) {
	text = err.Error()
	for _, n := range names {
		if rest, ok := strings.CutPrefix(text, fmt.Sprintf("recipe %s: ", n)); ok {
			return n, rest
		}
	}
	return "", text
}

func recipePath(name string) yamlPath {
	if name == "" {
		return "recipes"
	}
	return yamlPath("recipes").child(name)
}

// flatten splits joined errors; nil has none.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}
