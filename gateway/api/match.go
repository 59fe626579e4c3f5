package api

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
)

// RouteMatch is what a method and a path lead to. Exactly one of these holds: Route
// is set; Allow is set, for a known path with the wrong method (405); neither
// is, for an unknown path (404).
type RouteMatch struct {
	Route   *Route
	Dialect Dialect // of the path, known or not
	Head    bool    // answer like GET, without a body
	ID      string  // what {id} stands for, decoded; for upstream see [SplitUpstream]
	Tail    string  // the same as it stands in the path
	Allow   string  // value of the Allow header
	Path    string  // of the request, for an unknown path

	router *Router // for an unknown path
}

// Err returns the refusal of a hit without a route, nil for one with a route.
func (h RouteMatch) Err() *Error {
	switch {
	case h.Route != nil:
		return nil
	case h.Allow != "":
		return notAllowed(h.Allow)
	}
	path := h.Path
	if len(path) > maxPathTold {
		path = path[:maxPathTold] + "…"
	}
	text := "There is no path '" + strings.ToValidUTF8(path, "\uFFFD") + "' on this server."
	if near := h.router.likely(h.Path); near != "" {
		text += " Did you mean '" + near + "'?"
	}
	return New(UnknownURL, text)
}

// maxPathTold is how many bytes of an unknown path an error repeats.
const maxPathTold = 100

// likely returns a path that is served and looks like an unknown one: the same without double slashes, and with or without
// the beginning that base URLs differ in. It repeats no id of the path. "" for none.
func (t *Router) likely(path string) string {
	if t == nil {
		return ""
	}
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	bare := strings.TrimPrefix(path, "/api")
	for _, p := range []string{path, "/v1" + path, strings.TrimPrefix(path, "/v1"), bare, "/v1" + bare} {
		if h := t.Match("GET", p); len(p) > 1 && h.ID == "" && (h.Route != nil || h.Allow != "") {
			return p
		}
	}
	return ""
}

// Match finds the route of a request. path is the path as the client sent it,
// still %-coded and without the query. The hit may hold parts of path. For a
// path without %-codes Match does not allocate.
func (t *Router) Match(method, path string) RouteMatch {
	rest, mount := cutPrefix(path)
	tree := &t.bare
	if mount == Prefixed {
		tree = &t.prefixed
	}
	trimmed := rest
	if len(rest) > 1 {
		trimmed = strings.TrimSuffix(rest, "/")
	}
	if n := tree.exact[trimmed]; n != nil {
		return n.hit(method, "", "")
	}
	for i := range tree.tails {
		tail := &tree.tails[i]
		from := trimmed
		if tail.keepSlash {
			from = rest
		}
		raw, ok := tail.cut(from)
		if !ok {
			continue
		}
		id, err := url.PathUnescape(raw)
		if err != nil {
			break
		}
		return tail.hit(method, id, raw)
	}
	return RouteMatch{Dialect: t.unknownDialect(trimmed, mount), Path: path, router: t}
}

// SplitUpstream divides the tail of an upstream path into a model's name and
// the path meant for its engine. Names may hold slashes, so the longest name
// that is known wins. rest is "" when the tail is the name alone, else it
// begins with a slash and is still %-coded.
func SplitUpstream(tail string, known func(name string) bool) (id, rest string, ok bool) {
	const maxSegments = 4 // a name has two, and a provider in front
	for end, segment := 0, 0; end < len(tail) && segment < maxSegments; segment++ {
		if slash := strings.IndexByte(tail[end+min(segment, 1):], '/'); slash >= 0 {
			end += slash + min(segment, 1)
		} else {
			end = len(tail)
		}
		name, err := url.PathUnescape(tail[:end])
		if err == nil && name != "" && known(name) {
			id, rest, ok = name, tail[end:], true
		}
	}
	return id, rest, ok
}

// cutPrefix removes a version prefix.
func cutPrefix(path string) (rest string, mount Mount) {
	p := path
	if strings.HasPrefix(p, "/api/v") {
		p = p[len("/api"):]
	}
	if len(p) > 4 && p[0] == '/' && p[1] == 'v' && (p[2] == '1' || p[2] == '0') && p[3] == '/' {
		return p[3:], Prefixed
	}
	return path, Bare
}

// unknownDialect guesses who asks for a path that does not exist.
func (t *Router) unknownDialect(path string, mount Mount) Dialect {
	switch {
	case strings.HasPrefix(path, "/internal/"):
		return Lemonade
	case mount == Bare:
		if rest, ok := strings.CutPrefix(path, "/api/"); ok {
			verb, _, _ := strings.Cut(rest, "/")
			if n := t.bare.exact["/api/"+verb]; n != nil {
				return n.dialect
			}
		}
	case path == "/messages" || strings.HasPrefix(path, "/messages/"):
		return Anthropic
	case strings.HasPrefix(path, "/responses/"):
		return Responses
	}
	return OpenAI
}

// node is one path with its methods.
type node struct {
	get, post, del, any *Route
	dialect             Dialect // of its refusals
	allow               string
}

func (n *node) hit(method, id, raw string) RouteMatch {
	h := RouteMatch{Route: n.any, Dialect: n.dialect, ID: id, Tail: raw}
	switch method {
	case "POST":
		h.Route = cmp.Or(n.post, n.any)
	case "GET":
		h.Route = cmp.Or(n.get, n.any)
	case "HEAD":
		h.Route = cmp.Or(n.get, n.any)
		h.Head = true
	case "DELETE":
		h.Route = cmp.Or(n.del, n.any)
	}
	if h.Route == nil {
		h.Allow = n.allow
		return h
	}
	h.Dialect = h.Route.Dialect
	return h
}

// add puts a route into the node. The path's dialect is that of its first
// route in the table, where a POST takes precedence: it is what wrong methods
// are usually meant to be.
func (n *node) add(r *Route) {
	place := map[string]**Route{"GET": &n.get, "POST": &n.post, "DELETE": &n.del, anyMethod: &n.any}[r.Method]
	if place == nil || *place != nil {
		panic("api: route " + r.Method + " " + r.Path + " has an unknown method or is a duplicate")
	}
	if *place = r; n.allow == "" || r.Method == "POST" {
		n.dialect = r.Dialect
	}
	n.allow = ""
	for _, m := range []struct {
		route *Route
		text  string
	}{{n.get, "GET, HEAD, "}, {n.post, "POST, "}, {n.del, "DELETE, "}} {
		if m.route != nil {
			n.allow += m.text
		}
	}
	n.allow += "OPTIONS"
}

// tail is a path with {id} in it.
type tail struct {
	node
	prefix, suffix string
	keepSlash      bool // a final slash belongs to the tail
}

func (t *tail) cut(path string) (id string, ok bool) {
	if len(path) <= len(t.prefix)+len(t.suffix) || !strings.HasPrefix(path, t.prefix) || !strings.HasSuffix(path, t.suffix) {
		return "", false
	}
	return path[len(t.prefix) : len(path)-len(t.suffix)], true
}

// tree finds the node of a path.
type tree struct {
	exact map[string]*node
	tails []tail // the more special before the more general
}

// Router finds the route of a request. It is never changed.
type Router struct{ prefixed, bare tree }

// NewRouter returns a router of a table, whose routes it completes.
func NewRouter(table []*Route) *Router {
	for i, r := range table {
		r.compile(i)
	}
	return &Router{newTree(table, Prefixed), newTree(table, Bare)}
}

func newTree(table []*Route, mount Mount) tree {
	t := tree{exact: make(map[string]*node)}
	for _, r := range table {
		if r.Mount&mount == 0 {
			continue
		}
		prefix, suffix, isTail := strings.Cut(r.Path, "{id}")
		if !isTail {
			if t.exact[r.Path] == nil {
				t.exact[r.Path] = new(node)
			}
			t.exact[r.Path].add(r)
			continue
		}
		at := slices.IndexFunc(t.tails, func(o tail) bool { return o.prefix == prefix && o.suffix == suffix })
		if at < 0 {
			at = len(t.tails)
			t.tails = append(t.tails, tail{prefix: prefix, suffix: suffix, keepSlash: r.Body == BodyRaw})
		}
		t.tails[at].add(r)
	}
	slices.SortStableFunc(t.tails, func(a, b tail) int {
		return len(b.prefix) + len(b.suffix) - len(a.prefix) - len(a.suffix)
	})
	return t
}
