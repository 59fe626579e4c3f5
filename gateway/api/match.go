package api

import (
	"net/url"
	"slices"
	"strings"

	"reveille/infra/term"
)

// RouteMatch is what a method and a path lead to. Exactly one of these holds: Route
// is set; Allow is set, for a known path with the wrong method (405); neither
// is, for an unknown path (404).
type RouteMatch struct {
	Route   *Route
	Dialect Dialect // of the path
	Head    bool    // response like GET, without a body
	ID      string  // what {id} stands for, decoded; for upstream see [SplitUpstream]
	Tail    string  // the same, unescaped as in the path
	Allow   string  // value of the Allow header
	Path    string  // of the request, for an unknown path
}

// Err returns the refusal of a hit without a route, nil for one with a route.
func (h RouteMatch) Err() *Error {
	switch {
	case h.Route != nil:
		return nil
	case h.Allow != "":
		return notAllowed(h.Allow)
	}
	return Newf(UnknownURL, "The path '%s' does not exist on this server.", strings.ToValidUTF8(term.Clip(h.Path, 100), "\uFFFD"))
}

// Match finds the route of a request. path is the path as the client sent it,
// still %-coded and without the query. The hit may hold parts of path. For a
// path without %-codes Match does not allocate.
func (t *Router) Match(method, path string) RouteMatch {
	rest, mount := cutPrefix(path)
	trimmed := rest
	if len(rest) > 1 {
		trimmed = strings.TrimSuffix(rest, "/")
	}
	if n := t.exact[mountedPath{mount, trimmed}]; n != nil {
		return n.match(method, "", "")
	}
	for _, n := range t.tails[mount] {
		from := trimmed
		if n.keepSlash {
			from = rest
		}
		if len(from) <= len(n.prefix)+len(n.suffix) || !strings.HasPrefix(from, n.prefix) || !strings.HasSuffix(from, n.suffix) {
			continue
		}
		raw := from[len(n.prefix) : len(from)-len(n.suffix)]
		id, err := url.PathUnescape(raw)
		if err != nil {
			break
		}
		return n.match(method, id, raw)
	}
	unknown := RouteMatch{Path: path}
	switch {
	case strings.HasPrefix(rest, "/internal/"):
		unknown.Dialect = Lemonade
	case mount == Prefixed && strings.HasPrefix(rest, "/messages/"):
		unknown.Dialect = Anthropic
	}
	return unknown
}

// SplitUpstream divides the tail of an upstream path into a model's name and
// the path meant for its engine. Names may hold slashes, so the longest name
// that is known wins. rest is "" when the tail is the name alone, else it
// starts with a slash and is still %-coded.
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

// node is one path with its methods.
type node struct {
	routes  []*Route
	dialect Dialect // of its refusals: a POST's if there is one, as this is what wrong methods are usually meant to be
	allow   string

	prefix, suffix string // around {id}
	keepSlash      bool   // a final slash belongs to {id}
}

func (n *node) match(method, id, raw string) RouteMatch {
	h := RouteMatch{Dialect: n.dialect, ID: id, Tail: raw, Head: method == "HEAD"}
	for _, r := range n.routes {
		if r.Method == method || h.Head && r.Method == "GET" || r.Method == anyMethod {
			h.Route, h.Dialect = r, r.Dialect
			return h
		}
	}
	h.Allow = n.allow
	return h
}

// mountedPath is a path as it is mounted.
type mountedPath struct {
	mount Mount
	path  string
}

// Router finds the route of a request. It is never changed.
type Router struct {
	exact map[mountedPath]*node
	tails map[Mount][]*node // paths with {id}, the more special before the more general
}

// NewRouter returns a router of a table, whose routes it completes.
func NewRouter(table []*Route) *Router {
	all := map[mountedPath]*node{}
	t := &Router{exact: map[mountedPath]*node{}, tails: map[Mount][]*node{}}
	for i, r := range table {
		r.compile(i)
		for _, mount := range []Mount{Prefixed, Bare} {
			if r.Mount&mount == 0 {
				continue
			}
			at := mountedPath{mount, r.Path}
			n := all[at]
			if n == nil {
				n = &node{dialect: r.Dialect, keepSlash: r.Body == BodyRaw}
				all[at] = n
				var isTail bool
				if n.prefix, n.suffix, isTail = strings.Cut(r.Path, "{id}"); isTail {
					t.tails[mount] = append(t.tails[mount], n)
				} else {
					t.exact[at] = n
				}
			}
			n.add(r)
		}
	}
	for _, tails := range t.tails {
		slices.SortStableFunc(tails, func(a, b *node) int {
			return len(b.prefix) + len(b.suffix) - len(a.prefix) - len(a.suffix)
		})
	}
	return t
}

func (n *node) add(r *Route) {
	has := func(method string) bool {
		return slices.ContainsFunc(n.routes, func(o *Route) bool { return o.Method == method })
	}
	if has(r.Method) {
		panic("api: route " + r.Pattern + " is a duplicate")
	}
	n.routes = append(n.routes, r)
	n.allow = ""
	for _, method := range []string{"GET", "POST", "DELETE"} {
		if has(method) {
			n.allow += strings.Replace(method, "GET", "GET, HEAD", 1) + ", "
		}
	}
	n.allow += "OPTIONS"
	if r.Method == "POST" {
		n.dialect = r.Dialect
	}
}
