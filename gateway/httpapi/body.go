package httpapi

import (
	"reveille/gateway/api"
	"reveille/gateway/batches"
	"reveille/gateway/bodycheck"
	"reveille/gateway/models"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
	"reveille/infra/relay"
)

// inferenceCall is an inference request that passed the checks of its body.
type inferenceCall struct {
	*request
	model          *catalog.Model
	requestedModel string          // the model name that the client sent
	preset         *catalog.Preset // what that name adds to the body; nil for nothing
	replaced       *catalog.Model  // the model that it means, if a fallback serves it
	body           []byte          // what the engine receives

	engineStreams bool // the body asks the engine for a stream
	passive       bool // it neither loads the model nor keeps it loaded

	background catalog.BackgroundPolicy // what happens if its model is not loaded; "": a person waits for it

	textBytes int // bytes of the body without media, 0 if unknown
}

// readBody reads the body of an authorized request, if its route takes one.
func (r *request) readBody() (err error) {
	switch r.Match.Route.Body {
	case api.BodyNone:
		r.s.bodies.Finish(r.Ctx)
		return nil
	case api.BodyFile:
		return nil
	}
	r.buffered, err = r.s.bodies.Read(r.Ctx, maxBody(r.Match.Route))
	return r.bodyError(err)
}

// maxManagementBody bounds the bodies of routes that run no model. They are decoded whole, which takes several times
// their size.
const maxManagementBody = 1 << 20

// maxForm is the size of a form beside its file.
const maxForm = 64 << 10

// maxBody returns a route's own limit for bodies, 0 if only the gateway's applies.
func maxBody(route *api.Route) int {
	switch {
	case route == nil, route.Inference, route.Large:
		return 0
	case route.Body == api.BodyFile:
		return batches.MaxFile + maxForm
	}
	return maxManagementBody
}

// checkBodySize returns why a body of n bytes is refused, nil if it is not. Files are not buffered.
func (s *Server) checkBodySize(n int, route *api.Route) error {
	switch max := maxBody(route); {
	case route == nil || route.Body != api.BodyFile:
		return s.bodies.CheckSize(n, max)
	case n > max:
		return relay.ErrBodyTooLarge
	}
	return nil
}

// dropBody frees the body's memory and invalidates its bytes. It can be called more than once.
func (r *request) dropBody() {
	r.buffered.Drop()
	r.keepBody = false
}

// countRewritten counts the body's new buffer against MaxBufferedBytes, if rewriting made a copy.
func (c *inferenceCall) countRewritten() error {
	came, sent := c.Ctx.PostBody(), c.body
	if cap(sent) == 0 || cap(came) > 0 && &came[:cap(came)][cap(came)-1] == &sent[:cap(sent)][cap(sent)-1] {
		return nil // it is the one that came, perhaps with less at either end
	}
	return c.bodyError(c.buffered.Reserve(len(sent)))
}

// parse checks the body of an inference request and finds its model.
func (r *request) parse() (*inferenceCall, error) {
	c := &inferenceCall{request: r, passive: r.Match.Head, body: jsonscan.TrimMark(r.Ctx.PostBody())}
	route := r.Match.Route
	spec := r.route.fields
	var check bodycheck.Check
	var name string
	var err error
	if route.Body == api.BodyForm {
		name, err = c.parseForm()
	} else {
		name, err = c.parseJSON(&check, spec)
	}
	if err != nil {
		return nil, err
	}
	if name == "" && route.InQuery {
		name = r.Query("model")
	}
	if c.model, err = r.s.registry.Resolve(&r.Key, name, route); err != nil {
		return nil, err
	}
	c.requestedModel, c.preset = name, models.PresetOf(c.model, name)
	if c.preset != nil && spec != nil && route.Body == api.BodyJSON {
		if err := c.applyPreset(); err != nil {
			return nil, err
		}
		check = bodycheck.Check{}
		if _, err := c.parseJSON(&check, spec); err != nil {
			return nil, err
		}
	}
	c.markBackground()
	if served := c.fallbackFor(c.model); served != c.model {
		c.model, c.replaced = served, c.model
	}
	if route.Type != "" && c.model.Type != route.Type {
		return nil, api.Newf(api.ModelTypeMismatch, "The model '%s' is of type %s; this route needs one of type %s.", c.model.ID, c.model.Type, route.Type).WithParam("model")
	}
	if spec != nil {
		return c, c.finishCheck(&check, spec)
	}
	if route.Body == api.BodyJSON {
		return c, bodycheck.Decodable(c.body)
	}
	return c, nil
}

// applyPreset puts into the body what the model's name adds to it.
func (c *inferenceCall) applyPreset() error {
	body, err := c.preset.Apply(c.body)
	if err != nil {
		return api.BadJSON(err)
	}
	c.body = body
	return nil
}

// parseJSON reads a body once: it takes the members that the route table names and passes all others to the check.
func (c *inferenceCall) parseJSON(check *bodycheck.Check, spec *bodycheck.Spec) (name string, err error) {
	route := c.Match.Route
	var values [api.MaxKeys]jsonscan.Value
	m, err := jsonscan.Open(c.body)
	if err != nil {
		return "", api.BadJSON(err)
	}
	for m.Next() {
		name := m.Name()
		for i, key := range route.Keys() {
			if string(name) == key {
				values[i] = m.Value()
				break
			}
		}
		if spec != nil {
			check.Member(spec, &m)
		}
	}
	if m.Err() != nil {
		return "", api.BadJSON(m.Err())
	}
	c.engineStreams = route.Stream(values[:])
	c.stream = route.CanStream && c.engineStreams
	if e := route.Check(values[:]); e != nil {
		return "", e
	}
	return route.ModelName(values[:]).String(), nil
}

func (c *inferenceCall) parseForm() (name string, err error) {
	boundary, ok := jsonscan.Boundary(string(c.Ctx.Request.Header.ContentType()))
	if !ok {
		return "", api.New(api.UnsupportedMediaType, "This route takes multipart/form-data.")
	}
	route := c.Match.Route
	var parts [api.MaxKeys]jsonscan.Part
	if err := jsonscan.Multipart(c.body, boundary, route.Keys(), parts[:]); err != nil {
		return "", api.New(api.InvalidRequest, "Invalid multipart body.").WithCause(err)
	}
	if e := route.CheckForm(parts[:]); e != nil {
		return "", e
	}
	name = parts[api.KeyModel].String() // checkForm moves the parts
	return name, c.checkForm(boundary, route.Type == policy.Image)
}
