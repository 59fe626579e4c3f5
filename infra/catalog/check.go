package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

var (
	modelNameRE = regexp.MustCompile(`^` + namePart + `(/` + namePart + `)?(:[A-Za-z0-9._-]{1,63})?$`)
	hostNameRE  = regexp.MustCompile(`^` + namePart + `$`)
	instanceRE  = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)
	// https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
	workloadRE  = regexp.MustCompile(`^(statefulset|deployment)/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	namespaceRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

const (
	namePart = `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`
	// maxName is the length of the longest text that modelNameRE accepts.
	maxName = 64 + 1 + 64 + 1 + 63
	// maxLabels bounds the labels of a registered model.
	maxLabels = 32

	modelNameHint = `want letters, digits and . _ - in at most two parts divided by "/", then perhaps a ":tag"; no ".."`
	hostNameHint  = `want at most 64 letters, digits and . _ -, the first a letter or digit; no ".."`
)

// ValidModelName reports whether s may be a model's id or alias: at most two parts of letters, digits and ". _ -",
// divided by a slash, and a tag after a colon; never with "..".
func ValidModelName(s string) bool {
	return len(s) <= maxName && modelNameRE.MatchString(s) && !strings.Contains(s, "..")
}

// ValidHostName reports whether s may be the name or a label of a host: one part of a model's name.
func ValidHostName(s string) bool {
	return hostNameRE.MatchString(s) && !strings.Contains(s, "..")
}

// checker checks that the parts of a catalog are consistent, and completes it: it turns names into ids, normalizes
// options and fills in defaults. It is idempotent.
type checker struct {
	*report
	*Catalog
	owners map[string]*Model // id or alias -> model
}

func (r *report) check(cat *Catalog) {
	c := checker{r, cat, map[string]*Model{}}
	c.names()
	for _, m := range c.Models {
		c.model(m)
	}
	seen := map[string]bool{}
	for _, h := range c.Hosts {
		if seen[h.Name] {
			c.add(at("hosts", cmp.Or(h.Of, h.Name)), "there is another host of the name %s", h.Name)
		}
		if seen[h.Name] = true; h.Slot <= 1 || !ValidHostName(h.Name) { // the slots of a group are alike
			c.host(h)
		}
	}
	c.placement()
	for _, t := range slices.Sorted(maps.Keys(c.Defaults.Models)) {
		p := at("defaults", "models", string(t))
		if m := c.known(p, c.Defaults.Models[t]); m != nil && c.typeOK(p, t) {
			if m.Type != t {
				c.add(p, "%s is of type %s, not %s", m.ID, m.Type, t)
			}
			c.Defaults.Models[t] = m.ID
		}
	}
	c.anyNames()
	c.background()
	if c.DailyHostHours < 0 {
		c.add(at("daily_host_hours"), "want 0 or more")
	}
	c.period(at("batch_hours"), c.BatchHours)
	for i := range c.Warm {
		w, p := &c.Warm[i], []string{"warm", strconv.Itoa(i)}
		if m := c.known(append(p, "model"), w.Model); m != nil {
			w.Model = m.ID
		}
		c.period(p, &Period{w.Schedule, w.For})
	}
}

// maxPeriod bounds a time that recurs.
const maxPeriod = Duration(7 * 24 * time.Hour)

func (c *checker) period(path []string, p *Period) {
	if p != nil && p.Schedule.String() == "" {
		c.add(path, "schedule is missing")
	}
	if p != nil && (p.For <= 0 || p.For > maxPeriod) {
		c.add(path, "for is more than 0 and at most 168h, such as 8h")
	}
}

// names checks that each name has one owner.
func (c *checker) names() {
	for _, m := range c.Models {
		if !ValidModelName(m.ID) {
			c.add(at("models", m.ID), "bad model name %q: %s", clip(m.ID), modelNameHint)
		}
		if c.owners[m.ID] != nil {
			c.add(at("models", m.ID), "there is another model of this name")
		}
		c.owners[m.ID] = m
	}
	for _, m := range c.Models {
		c.aliases(m)
	}
}

// known returns the model that a reference names, or reports a problem.
func (c *checker) known(p []string, name string) *Model {
	m := c.owners[name]
	if m == nil {
		c.add(p, "unknown model %q", clip(name))
	}
	return m
}

// oneOf reports a value that is not among those wanted.
func oneOf[T ~string](c *checker, p []string, got T, want ...T) bool {
	if slices.Contains(want, got) {
		return true
	}
	c.add(p, "want one of %s, not %q", strings.Trim(fmt.Sprint(want), "[]"), clip(string(got)))
	return false
}

func (c *checker) typeOK(p []string, t policy.Type) bool { return oneOf(c, p, t, policy.Types()...) }

func (c *checker) model(m *Model) {
	p := func(field ...string) []string { return append(at("models", m.ID), field...) }
	m.MMCache, m.Replicas.Max = cmp.Or(m.MMCache, SharePerKey), max(m.Replicas.Max, 1)
	if !m.Registered {
		m.Type = cmp.Or(m.Type, policy.LLM)
		_, has := c.Recipes[recipe.LlamaCpp]
		if has && m.Recipe == "" && strings.HasSuffix(strings.ToLower(m.Checkpoint), ".gguf") {
			m.Recipe = recipe.LlamaCpp
		}
	}
	typeOK := c.typeOK(p("type"), m.Type)
	oneOf(c, p("mm_cache"), m.MMCache, SharePerKey, ShareAll, ShareNone)
	oneOf(c, p("conversations"), m.Conversations, "", SharePerKey, ShareAll, ShareNone)
	oneOf(c, p("fallback_when"), m.FallbackWhen, "", WhenAsked, WhenWaking)
	for i, name := range m.Fallback {
		switch f := c.known(p("fallback", strconv.Itoa(i)), name); {
		case f == nil:
		case f == m:
			c.add(p("fallback", strconv.Itoa(i)), "a model cannot be its own fallback")
		case cmp.Or(f.Type, policy.LLM) != m.Type:
			c.add(p("fallback", strconv.Itoa(i)), "%s is of type %s, not %s", f.ID, f.Type, m.Type)
		default:
			m.Fallback[i] = f.ID
		}
	}
	for field, value := range map[string]string{"checkpoint": m.Checkpoint, "mmproj": m.MMProj} {
		if wrong := ParseCheckpoint(value).wrong(); value != "" && wrong != "" {
			c.add(p(field), "%s", wrong)
		}
	}
	if m.SHA256 != "" {
		m.SHA256 = strings.ToLower(m.SHA256)
		if raw, err := hex.DecodeString(m.SHA256); err != nil || len(raw) != sha256.Size {
			c.add(p("sha256"), "%q is not a SHA-256: want 64 hex digits", clip(m.SHA256))
		}
		if from := ParseCheckpoint(m.Checkpoint); from.Scheme == SchemePath || from.Path == "" {
			c.add(p("sha256"), "it is checked when one file is fetched from s3:// or hf://, and the checkpoint is none")
		}
	}
	switch rec, ok := c.Recipes[m.Recipe]; {
	case m.Recipe == "":
		c.add(p("recipe"), "recipe is missing; only a checkpoint whose name ends in .gguf needs none")
	case !ok:
		c.add(p("recipe"), "unknown recipe %q", clip(m.Recipe))
	default:
		if typeOK && !rec.Serves(m.Type) {
			c.add(p("type"), "recipe %s serves no %s models", m.Recipe, m.Type)
		}
		c.fits(m, &rec, p)
	}
}

// fits checks a model against its recipe.
func (c *checker) fits(m *Model, rec *recipe.Recipe, p func(...string) []string) {
	if m.Checkpoint == "" && rec.Uses("model") {
		c.add(p(), "checkpoint is missing: a path, s3://bucket/key or hf://org/repo/file")
	}
	if m.MMProj != "" && !rec.Uses("mmproj") {
		c.add(p("mmproj"), "recipe %s takes no projector", m.Recipe)
	}
	if m.Conversations == SharePerKey && (m.Type != policy.LLM || rec.Family() != recipe.LlamaCpp) {
		c.add(p("conversations"), "only models of type llm on llamacpp keep conversations apart by key")
	}
	from := recipe.Operator
	if m.Registered {
		from = recipe.Client
		if !rec.Registrable() {
			c.add(p("recipe"), "recipe %s takes no registered models, unless its entry says `registration: allow`", m.Recipe)
		}
		if len(m.Labels) > maxLabels || slices.ContainsFunc(m.Labels, func(l string) bool { return !ValidHostName(l) }) {
			c.add(p("labels"), "a bad label, or more than %d: %s", maxLabels, hostNameHint)
		}
	}
	given := m.Options.Clone()
	maps.DeleteFunc(given, func(_ string, v any) bool { return v == nil }) // the next lower source counts
	opts, err := rec.ParseOptions(given, from)
	for _, e := range recipe.OptionErrors(err) {
		c.add(p("options", e.Name), "%s", e.Reason)
	}
	if m.Options = nil; len(opts) > 0 {
		m.Options = opts
	}
	if !c.devices(m, p("device")) {
		return
	}
	switch d := rec.DevicesFor(opts, m.Devices); {
	case d == 0:
		c.add(p(), "device is missing: recipe %s has no default; want cpu, gpu, npu or a list", m.Recipe)
	case m.Devices != 0 && m.Devices != d:
		c.add(p("device"), "device %s, but the options select a backend that uses %s", m.Devices, d)
	case rec.Devices.Has(policy.NPU) && !d.Has(policy.NPU) && rec.Backend(opts, m.Devices) == "":
		c.add(p("device"), "device %s, but recipe %s runs on the %s, which its models have to themselves", d, m.Recipe, rec.Devices)
	case d&^rec.Allowed() != 0:
		c.add(p("device"), "device %s, but recipe %s runs on %s", d, m.Recipe, rec.Allowed())
	default:
		m.Devices = d
		c.gpus(m, rec, p)
	}
}

// devices reads Device, if there is one, into Devices and Cards.
func (c *checker) devices(m *Model, p []string) bool {
	for _, name := range m.Device {
		index, single := strings.CutPrefix(name, "gpu:")
		card, err := strconv.ParseUint(index, 10, 8)
		d := policy.GPU
		if !single {
			d, err = policy.ParseDevices(name)
		}
		if err != nil || single && card >= policy.MaxGPUs {
			c.add(p, "unknown device %q: want cpu, gpu, npu or gpu:0 to gpu:%d", clip(name), policy.MaxGPUs-1)
			return false
		}
		if m.Devices |= d; single && !slices.Contains(m.Cards, int(card)) {
			m.Cards = append(m.Cards, int(card))
		}
	}
	m.Device = nil
	return true
}

// gpus checks a model's choice of GPUs.
func (c *checker) gpus(m *Model, rec *recipe.Recipe, p func(...string) []string) {
	switch {
	case m.GPUs == 0 && len(m.Cards) == 0:
	case m.GPUs < 0 || m.GPUs > policy.MaxGPUs:
		c.add(p("gpus"), "%d gpus: want 1 to %d", m.GPUs, policy.MaxGPUs)
	case !m.Devices.Has(policy.GPU):
		c.add(p("gpus"), "the model uses no gpu, but %s", m.Devices)
	case rec.GPUs.Split == "":
		c.add(p("device"), "recipe %s cannot use single gpus", m.Recipe)
	case m.GPUs > 1 && rec.GPUs.Split == recipe.SplitNone:
		c.add(p("gpus"), "recipe %s uses one gpu", m.Recipe)
	case len(m.Cards) > 0 && m.GPUs > len(m.Cards):
		c.add(p("gpus"), "%d gpus, but device names %d", m.GPUs, len(m.Cards))
	}
}

// placement checks that every model has a host, and warns of hosts without a model. Without hosts it checks nothing.
func (c *checker) placement() {
	if len(c.Hosts) == 0 {
		return
	}
	used := map[string]bool{}
	for _, m := range c.Models {
		p := at("models", m.ID)
		for i, name := range m.Hosts {
			if !slices.ContainsFunc(c.Hosts, func(h *Host) bool { return h.Answers(name) }) {
				c.add(append(p, "hosts", strconv.Itoa(i)), "no host has the name or label %q", clip(name))
			}
		}
		hosts := c.HostsFor(m)
		for _, h := range hosts {
			used[h.Name] = true
		}
		switch rec := c.Recipes[m.Recipe]; {
		case len(hosts) > 0 || m.Devices == 0:
		case len(rec.Backends) > 0:
			c.warn(p, "none of its hosts has its devices (%s), unless %s is set elsewhere", m.Devices, rec.BackendOption)
		default:
			c.add(p, "none of its hosts has its devices (%s)", m.Devices)
		}
	}
	for _, h := range c.Hosts {
		if !used[h.Name] && len(c.Models) > 0 && h.Slot <= 1 {
			c.warn(at("hosts", cmp.Or(h.Of, h.Name)), "no model is placed on this host, for its devices or by their hosts lists")
		}
	}
}

func (c *checker) host(h *Host) {
	p := func(field ...string) []string { return append(at("hosts", cmp.Or(h.Of, h.Name)), field...) }
	if !ValidHostName(h.Name) {
		c.add(p(), "bad host name %q: %s", clip(h.Name), hostNameHint)
	}
	for _, l := range h.Labels {
		if !ValidHostName(l) {
			c.add(p("labels"), "bad label %q: %s", clip(l), hostNameHint)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(h.NPUSeats)) {
		if c.typeOK(p("npu_seats", string(t)), t); h.NPUSeats[t] < 0 {
			c.add(p("npu_seats", string(t)), "want 0 or more")
		}
	}
	if len(h.NPUSeats) > 0 && !h.Has(policy.NPU) {
		c.add(p("npu_seats"), "seats of an NPU that the host does not have")
	}
	for _, name := range slices.Sorted(maps.Keys(h.Memory)) {
		d, err := policy.ParseDevices(name)
		switch {
		case err != nil || name == "":
			c.add(p("memory", name), "unknown device %q: want cpu, gpu or npu", clip(name))
		case h.Memory[name] == 0:
			c.add(p("memory", name), "want a size above 0, such as 24GiB")
		case !h.Has(d):
			c.add(p("memory", name), "memory of a device that the host does not have: %s", name)
		}
	}
	if h.Price < 0 || h.Max < 0 || h.DailyHostHours < 0 {
		c.add(p(), "price, max and daily_host_hours are 0 or more")
	}
	c.period(p("rest"), h.Rest)
	if h.Devices == 0 && h.Driver != DriverLocal {
		c.add(p(), "devices is missing: a sleeping host cannot be asked for them")
	}
	if oneOf(c, p("driver"), h.Driver, DriverLocal, DriverWoL, DriverEC2, DriverASG, DriverExec, DriverKubernetes) {
		c.driver(h, p)
	}
}

// driver checks that a host has what its driver needs, and nothing of another driver's.
func (c *checker) driver(h *Host, p func(...string) []string) {
	if h.Driver == DriverASG {
		h.Max = max(h.Max, 1)
	}
	switch {
	case h.Max > maxSlots:
		c.add(p("max"), "%d: want 1 to %d", h.Max, maxSlots)
	case h.Max > 1 && h.Address != "":
		c.add(p("address"), "each machine of a group reports its own address")
	case h.Max > 1 && strings.HasPrefix(h.Workload, "deployment/"):
		c.add(p("max"), "the pods of a Deployment have no numbers: use a StatefulSet, or one Deployment for each host")
	}
	kubernetes := []Driver{DriverKubernetes}
	address, anything := validAddress, func(string) bool { return true }
	var wake, sleep bool
	if h.Commands != nil {
		wake, sleep = len(h.Commands.Wake) > 0, len(h.Commands.Sleep) > 0
	}
	given := func(is bool) string {
		if is {
			return "yes"
		}
		return ""
	}
	for _, f := range [...]struct {
		name, value string
		required    bool
		valid       func(string) bool
		want        string
		of          []Driver // none: all
	}{
		{"address", h.Address, false, address, `host:port of the runner, such as "192.0.2.10:8090"`, nil},
		{"mac", h.MAC, true, validMAC, `six bytes in quotes, such as "00:11:22:33:44:55"`, []Driver{DriverWoL}},
		{"secure_on", h.SecureOn, false, func(string) bool { return h.SecureOnPassword() != nil }, `4 or 6 bytes in quotes, such as "0a:0b:0c:0d:0e:0f"`, []Driver{DriverWoL}},
		{"broadcast", h.Broadcast, false, address, `host:port of UDP, such as "192.0.2.255:9"`, []Driver{DriverWoL}},
		{"instance", h.Instance, true, instanceRE.MatchString, "one such as i-0123456789abcdef0", []Driver{DriverEC2}},
		{"hibernate", given(h.Hibernate), false, anything, "", []Driver{DriverEC2}},
		{"group", h.Group, true, anything, "", []Driver{DriverASG}},
		{"max", given(h.Max > 0), false, anything, "", []Driver{DriverASG, DriverKubernetes}},
		{"region", h.Region, false, anything, "", []Driver{DriverEC2, DriverASG}},
		{"workload", h.Workload, true, workloadRE.MatchString, "statefulset/NAME or deployment/NAME", kubernetes},
		{"namespace", h.Namespace, false, namespaceRE.MatchString, "small letters, digits and -", kubernetes},
		{"commands.wake", given(wake), true, anything, "", []Driver{DriverExec}},
		{"commands.sleep", given(sleep), true, anything, "", []Driver{DriverExec}},
	} {
		field, _, _ := strings.Cut(f.name, ".")
		mine := len(f.of) == 0 || slices.Contains(f.of, h.Driver)
		switch {
		case f.value == "" && f.required && mine:
			c.add(p(), "%s is missing: driver %s needs it", f.name, h.Driver)
		case f.value == "":
		case !mine:
			c.add(p(field), "%s belongs to driver %s, not %s", field, f.of[0], h.Driver)
		case !f.valid(f.value):
			c.add(p(field), "%q: want %s", clip(f.value), f.want)
		}
	}
}

func validMAC(s string) bool {
	mac, err := net.ParseMAC(s)
	return err == nil && len(mac) == 6
}

func validAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.Atoi(port)
	return err == nil && perr == nil && host != "" && n >= 1 && n <= 65535 && !strings.ContainsAny(host, " /@")
}
