package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/costs"
	"reveille/gateway/keys"
	"reveille/gateway/ui"
	"reveille/infra/state"
)

// Bounds of the open pages that follow the pool at this gateway: of all, and of one key.
const (
	maxViewers    = 64
	maxKeyViewers = 16
)

// The page's pace: at most two updates a second; what raises no event, such as open requests, once a second.
const (
	pagePace   = 500 * time.Millisecond
	pageEvery  = time.Second
	pagePing   = 15 * time.Second // also how late a revoked key ends a stream
	watchEvery = 10 * time.Second // of the hosts, for the timeline
)

// pageHeaders are sent with all of the page's responses.
var pageHeaders = []api.Header{
	{Name: "Content-Security-Policy", Value: ui.Policy}, {Name: "X-Content-Type-Options", Value: "nosniff"}, {Name: "Referrer-Policy", Value: "no-referrer"},
	{Name: "Cross-Origin-Opener-Policy", Value: "same-origin"}, {Name: "Cross-Origin-Resource-Policy", Value: "same-origin"},
}

// page is GET /ui.
func (s *Server) page(r *request) error { return r.file(ui.Page) }

// pageFile is GET /ui/NAME.
func (s *Server) pageFile(r *request) error { return r.file(r.Match.ID) }

func (r *request) file(name string) error {
	f, ok := ui.Open(name)
	if !ok {
		return api.RouteMatch{Path: "/ui/" + name}.Err()
	}
	r.setHeaders(pageHeaders)
	h := &r.Ctx.Response.Header
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.ETag)
	if string(r.Ctx.Request.Header.Peek("If-None-Match")) == f.ETag {
		r.Send(fasthttp.StatusNotModified, f.Type, nil)
		return nil
	}
	r.Send(fasthttp.StatusOK, f.Type, f.Body)
	return nil
}

// sessionResponse reports to the page what it may do.
type sessionResponse struct {
	Version string `json:"version"`
	Keyed   bool   `json:"keyed"`   // keys are configured: without a session nothing works
	Admin   bool   `json:"admin"`   // there is a key of this machine, for logs
	Key     bool   `json:"key"`     // there is a session
	Infer   bool   `json:"infer"`   // may run models
	Manage  bool   `json:"manage"`  // may load, unload, pin, wake and put to sleep
	Logs    bool   `json:"logs"`    // may read logs
	Batches bool   `json:"batches"` // there are batches, and it may list its own
	Token   string `json:"token"`   // for ui.HeaderToken, "" without a session
	Ends    int64  `json:"ends"`    // of the session, Unix seconds
}

// session is GET /ui/session.
func (s *Server) session(r *request) error {
	if err := r.ownPage(); err != nil {
		return err
	}
	key, session := s.sessionOf(&r.Ctx.Request.Header)
	return r.sendSession(key, session)
}

// login is POST /ui/session: it exchanges a key for a session cookie.
func (s *Server) login(r *request) error {
	if err := r.ownPage(); err != nil {
		return err
	}
	var body struct {
		Key string `json:"key"`
	}
	if err := r.Decode(&body); err != nil {
		return err
	}
	key := s.cfg.Keys.Find([]byte(strings.TrimSpace(body.Key)))
	if key.Scopes == 0 {
		return api.New(api.InvalidAPIKey, "Unknown API key.")
	}
	value, session := s.cfg.Sessions.Begin(key.Digest, time.Now())
	r.setCookie(value, int(ui.SessionFor.Seconds()))
	return r.sendSession(key, session)
}

// logout is DELETE /ui/session: the browser forgets the cookie.
func (s *Server) logout(r *request) error {
	if err := r.ownPage(); err != nil {
		return err
	}
	r.setCookie("", -1)
	return r.sendSession(keys.Key{}, ui.Session{})
}

// ownPage refuses pages of other origins, also those that may use the gateway: sessions are the page's own.
func (r *request) ownPage() error {
	if sourceOf(&r.Ctx.Request.Header).CrossOrigin() {
		return api.New(api.ForbiddenOrigin, "Only the gateway's own page has sessions.")
	}
	return nil
}

// setCookie sets the session's cookie; age is in seconds, below 0 removes it. A browser whose page came by TLS names
// an https origin, whatever lies between it and the gateway.
func (r *request) setCookie(value string, age int) {
	c := fasthttp.AcquireCookie()
	defer fasthttp.ReleaseCookie(c)
	c.SetKey(r.s.cfg.Sessions.Cookie())
	c.SetValue(value)
	c.SetPath("/")
	c.SetHTTPOnly(true)
	c.SetSameSite(fasthttp.CookieSameSiteStrictMode)
	c.SetSecure(strings.HasPrefix(string(r.Ctx.Request.Header.Peek("Origin")), "https://"))
	if c.SetMaxAge(age); age < 0 {
		c.SetExpire(fasthttp.CookieExpireDelete)
	}
	r.Ctx.Response.Header.SetCookie(c)
}

func (r *request) sendSession(key keys.Key, session ui.Session) error {
	r.setHeaders(pageHeaders)
	r.Ctx.Response.Header.Set("Cache-Control", "no-store")
	keyed, there := r.s.cfg.Keys.Configured(), key.Scopes != 0
	out := sessionResponse{
		Version: r.s.cfg.Version, Keyed: keyed, Admin: r.s.cfg.Keys.HasLocal(), Key: there, Token: session.Token,
		Infer: !keyed || key.Scopes&keys.Infer != 0, Manage: !keyed || key.Scopes&keys.Manage != 0, Logs: key.Scopes&keys.Manage != 0 && !key.Limited(),
	}
	out.Batches = out.Infer && r.s.batches != nil
	if there {
		out.Ends = session.Ends.Unix()
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// pageStream is GET /ui/stream: the pool as events, until the reader leaves or its key is withdrawn.
func (s *Server) pageStream(r *request) error {
	r.setHeaders(pageHeaders)
	r.setHeaders(streamHeaders)
	if r.Match.Head {
		r.Send(fasthttp.StatusOK, api.OpenAI.StreamType(), nil)
		return nil
	}
	viewer, err := s.hub.Join(r.Key.Digest, r.Manages())
	if errors.Is(err, ui.ErrFull) {
		return api.Newf(api.Overloaded, "Too many open pages: a gateway serves at most %d, and %d per key. Close one.", maxViewers, maxKeyViewers)
	}
	digest := r.Key.Digest // the request is recycled before the stream runs
	ends := time.Now().Add(ui.SessionFor)
	if _, session := s.sessionOf(&r.Ctx.Request.Header); session.Token != "" {
		ends = session.Ends
	}
	ctx, cancel := context.WithCancel(s.lifetime)
	watch := r.Watch(cancel)
	r.CountResponse(fasthttp.StatusOK)
	r.Ctx.SetStatusCode(fasthttp.StatusOK)
	r.Ctx.SetContentType(api.OpenAI.StreamType())
	r.Stream(func(w *bufio.Writer) {
		defer viewer.Leave()
		defer watch.Stop()
		defer cancel()
		var buf []byte
		for more := true; more; {
			if buf, more = viewer.Next(ctx, buf[:0], pagePing); len(buf) == 0 {
				buf = append(buf, api.Ping...)
			}
			if s.cfg.Keys.Withdrawn(digest) || time.Now().After(ends) {
				return
			}
			if _, err := w.Write(buf); err != nil || w.Flush() != nil {
				return
			}
		}
	})
	return nil
}

// newHub makes the producer of what pages show. It reads this gateway's memory only.
func (s *Server) newHub() *ui.Hub {
	return ui.NewHub(s.lifetime, ui.HubConfig{
		MaxViewers: maxViewers, MaxPerKey: maxKeyViewers, Pace: pagePace, Every: pageEvery, Changed: s.cfg.Mirror.Changed, Build: s.buildPage,
		Now: func() int64 {
			snap := s.cfg.Mirror.Snapshot()
			return snap.NowMS + time.Since(snap.Taken).Milliseconds()
		},
	})
}

func (s *Server) buildPage() (out ui.Update) {
	defer s.web.RecoverPanic("page")
	src, now := s.pageSource(), time.Now()
	s.history.OnSnapshot(now, src.Snapshot)
	month, days := s.costs.Month(now)
	for feed, view := range map[ui.Feed]any{
		ui.FeedPool: src.Pool(), ui.FeedModels: src.Models(), ui.FeedNotes: src.Notes(), ui.FeedHistory: s.history.Timeline(now, src.Catalog, costs.New(month, days, costs.ByHost, src.Catalog)),
	} {
		text, err := json.Marshal(view)
		if err != nil {
			s.log.Error("could not build the page's view of the pool", "error", err)
			continue
		}
		out[feed] = text
	}
	return out
}

func (s *Server) pageSource() ui.Source {
	snap, cat := s.cfg.Mirror.Snapshot(), s.cfg.Catalog()
	return ui.Source{
		Snapshot: snap, Stale: !s.cfg.Store.IsAvailable(), Catalog: cat, Waiting: s.cfg.Gate.Waiting(), Evict: s.cfg.Evict, Stage: s.cfg.Gate.ProgressOf,
		Copy: func(h *state.HostRecord, m *state.ModelRecord) ui.Model { return s.manage.PageModel(snap, cat, h, m) },
	}
}

// watchHosts keeps the timeline's states of hosts until the server ends.
func (s *Server) watchHosts() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.lifetime.Done():
			return
		case <-tick.C:
			s.history.OnSnapshot(time.Now(), s.cfg.Mirror.Snapshot())
		}
	}
}
