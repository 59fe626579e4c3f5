package httpapi

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/gateway/pressure"
	"reveille/gateway/ui"
	"reveille/gateway/web"
)

// splitTarget splits a request target into the authority of its absolute form, empty otherwise, and its path with the
// query.
func splitTarget(target []byte) (authority, path []byte) {
	if len(target) == 0 || target[0] == '/' {
		return nil, target
	}
	_, rest, absolute := bytes.Cut(target, []byte("://"))
	if !absolute {
		return nil, target
	}
	end := bytes.IndexAny(rest, "/?#")
	switch {
	case end < 0:
		return rest, []byte("/")
	case rest[end] != '/':
		return rest[:end], append([]byte("/"), rest[end:]...)
	}
	return rest[:end], rest[end:]
}

// sourceOf returns the headers that show where a request comes from. A target in absolute form without an authority
// gets an authority that is not a host name, so it is refused.
func sourceOf(h *fasthttp.RequestHeader) api.Source {
	s := api.Source{Host: string(h.Host())}
	if target := h.RequestURI(); len(target) > 0 && target[0] != '/' {
		if authority, path := splitTarget(target); len(authority) > 0 {
			s.Target = string(authority)
		} else if len(path) < len(target) {
			s.Target = "?"
		}
	}
	all := func(name string) string { return string(bytes.Join(h.PeekAll(name), []byte("\n"))) }
	s.Origin, s.Site, s.Referer = all("Origin"), all("Sec-Fetch-Site"), all("Referer")
	return s
}

// openKey is the key of requests on a gateway without keys.
var openKey = keys.Key{Scopes: keys.Infer | keys.Manage, MaxPriority: "high"}

// authorize returns the key of a request with these headers, or the error that refuses the request on this route. On
// a gateway without keys every request gets a key with both scopes.
func (s *Server) authorize(h *fasthttp.RequestHeader, match api.RouteMatch, source api.Source) (keys.Key, *api.Error) {
	metrics := match.Route != nil && s.routes[match.Route.Index].metrics
	free := match.Route != nil && match.Route.Scope == api.ScopeFree || metrics && s.cfg.FreeMetrics
	key := openKey
	switch {
	case free:
	case s.cfg.Keys.Configured():
		if key = s.keyOf(h, source); key.Scopes == 0 {
			return keys.Key{}, api.Unauthorized()
		}
		if match.Route == nil {
			return keys.Key{}, match.Err()
		}
		scope := match.Route.Scope
		manages := scope == api.ScopeManage || scope == api.ScopeAdmin
		switch {
		case manages && key.Scopes&keys.Manage == 0:
			return keys.Key{}, api.New(api.InsufficientScope, "This key may not manage models; it needs the scope 'manage'.")
		case (scope == api.ScopeInfer || manages && match.Route.Inference) && key.Scopes&keys.Infer == 0:
			return keys.Key{}, api.New(api.InsufficientScope, "This key may not run models; it needs the scope 'infer'.")
		case key.Limited() && !match.Route.PerModel && scope != api.ScopeFree:
			return keys.Key{}, api.RestrictedKey()
		}
	case match.Route != nil && match.Route.Scope == api.ScopeAdmin:
		if e := s.requireLocalAdmin(h, source); e != nil {
			return keys.Key{}, e
		}
	}
	if e := match.Err(); e != nil {
		return keys.Key{}, e
	}
	if !free && !metrics {
		if e := s.checkMemory(); e != nil {
			return keys.Key{}, e
		}
	}
	return key, nil
}

// checkMemory refuses a request while the gateway's memory is nearly full.
func (s *Server) checkMemory() *api.Error {
	if s.cfg.Memory.Level() < pressure.Shed {
		return nil
	}
	return api.New(api.Overloaded, "The gateway's memory is full. Retry the request.")
}

// keyOf returns the first valid key that a request presents, else that of the page's session. Browsers send Basic
// credentials by themselves, so these do not count if a page of another origin sent the request.
func (s *Server) keyOf(h *fasthttp.RequestHeader, source api.Source) keys.Key {
	authorization := h.Peek("Authorization")
	if keys.IsBasic(authorization) && source.CrossOrigin() {
		authorization = nil
	}
	// Clients send both if their environment has both; one of them may be for another service.
	for _, text := range [...][]byte{h.Peek("x-api-key"), keys.FromAuthorization(authorization)} {
		if key := s.cfg.Keys.Find(text); key.Scopes != 0 {
			return key
		}
	}
	if !source.CrossOrigin() {
		if key, session := s.sessionOf(h); session.ValidToken(h.Peek(ui.HeaderToken)) {
			return key
		}
	}
	return keys.Key{}
}

// sessionOf returns the session of a request's cookie and its key, which it looks up again each time. Both are zero if
// there is none, it is over, or the key is not valid any more. By itself a cookie proves nothing: other pages can have
// a browser send it.
func (s *Server) sessionOf(h *fasthttp.RequestHeader) (keys.Key, ui.Session) {
	session, ok := s.cfg.Sessions.Open(h.Cookie(s.cfg.Sessions.Cookie()), time.Now())
	if !ok {
		return keys.Key{}, ui.Session{}
	}
	key := s.cfg.Keys.FindDigest(session.Key)
	if key.Scopes == 0 {
		return keys.Key{}, ui.Session{}
	}
	return key, session
}

// requireLocalAdmin refuses a request without the local admin key, on a gateway without keys, where the route could run
// programs or read files on the hosts.
func (s *Server) requireLocalAdmin(h *fasthttp.RequestHeader, source api.Source) *api.Error {
	switch {
	case s.keyOf(h, source).Scopes&keys.Manage != 0:
		return nil
	case !s.cfg.Keys.HasLocal():
		return api.New(api.InsufficientScope, "This route needs an API key with the scope 'manage', and this gateway has no keys: configure one with --api-keys-file or --admin-key.")
	}
	e := api.Unauthorized()
	e.Message = "This route needs a key even on this machine: send 'Authorization: Bearer KEY' with the key in the file admin-key of the gateway's state folder."
	return e
}

// localAdmin is requireLocalAdmin for handlers of which only some requests need the key. With API keys configured, the chain
// has already checked.
func (s *Server) localAdmin(r *web.Request) error {
	if s.cfg.Keys.Configured() {
		return nil
	}
	h := &r.Ctx.Request.Header
	if e := s.requireLocalAdmin(h, sourceOf(h)); e != nil {
		return e
	}
	return nil
}
