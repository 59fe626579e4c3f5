package httpapi

import (
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// upstream loads the model that the path names and passes the request to its engine, with method, query, body and the
// rest of the path unchanged. A path that ends with the name is redirected to the one with a slash, so that relative
// links on an engine's own pages work. HEAD and GET of one of monitorPaths load nothing.
func (s *Server) upstream(r *request) error {
	id, rest, found := api.SplitUpstream(r.Match.Tail, func(name string) bool {
		return s.registry.IsName(name) || s.registry.IsName(strings.TrimSuffix(name, ":latest"))
	})
	if !found {
		return s.registry.Unknown(&r.Key, r.Match.ID)
	}
	model, err := s.registry.Named(&r.Key, id)
	if err != nil {
		return err
	}
	_, target := splitTarget(r.Ctx.Request.Header.RequestURI())
	path, query, hasQuery := strings.Cut(string(target), "?")
	if hasQuery {
		query = "?" + query
	}
	if rest == "" {
		r.CountResponse(fasthttp.StatusTemporaryRedirect)
		r.Ctx.Response.Header.Set("Location", path+"/"+query)
		r.Ctx.SetStatusCode(fasthttp.StatusTemporaryRedirect)
		return nil
	}
	h := &r.Ctx.Request.Header
	passive := h.IsHead() || h.IsGet() && slices.Contains(monitorPaths, bodycheck.PlainPath(rest))
	c := &inferenceCall{request: r, model: model, requestedModel: id, body: r.Ctx.PostBody(), passive: passive}
	c.markBackground()
	if err := c.vetUpstream(rest); err != nil {
		return err
	}
	// An engine's page must not act as the gateway's own.
	r.Ctx.Response.Header.Set("Content-Security-Policy", "sandbox")
	x := &exchange{call: c, path: []byte(rest + query), raw: true}
	return x.serveInference()
}

// monitorPaths are the paths of engines that monitors read.
var monitorPaths = []string{
	"/health", "/v1/health", "/healthz", "/live", "/livez", "/ready", "/readyz", "/ping", "/metrics", "/version",
	"/v1/models", "/models", "/slots", "/props", "/favicon.ico", "/robots.txt",
}

// vetUpstream applies the rules of the inference routes to the body of a request to an engine's own path that runs the
// model.
func (c *inferenceCall) vetUpstream(path string) error {
	if h := &c.Ctx.Request.Header; h.IsGet() || h.IsHead() {
		return nil
	}
	switch kind, spec := bodycheck.ForPath(path); kind {
	case bodycheck.JSON:
		var stream [1]jsonscan.Value
		c.engineStreams = jsonscan.Scan(c.body, []string{"stream"}, stream[:]) == nil && stream[0].Bool()
		return c.checkBody(spec)
	case bodycheck.Files:
		boundary, ok := jsonscan.Boundary(string(c.Ctx.Request.Header.ContentType()))
		if !ok {
			return api.New(api.UnsupportedMediaType, "This route takes multipart/form-data.")
		}
		return c.checkForm(boundary, c.model.Type == policy.Image)
	case bodycheck.Closed:
		return api.New(api.UnsupportedParameter, "This path of the engine is blocked; use the gateway's route.")
	}
	return nil
}
