package front

import (
	"errors"
	"slices"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
	"reveille/infra/catalog"
)

// call is an inference request that passed the checks of its body.
type call struct {
	*request
	model *catalog.Model
	asked string // the name that the client used
	body  []byte // what the engine gets

	messages []byte // the member of a JSON body in which media may be
}

// parse checks the body of an inference request and finds its model.
func (r *request) parse() (*call, error) {
	c := &call{request: r, body: r.ctx.PostBody()}
	route := r.hit.Route
	var name string
	var err error
	if route.Body == wire.BodyForm {
		name, err = c.parseForm()
	} else {
		name, err = c.parseJSON()
	}
	if err != nil {
		return nil, err
	}
	if c.model, err = r.s.resolve(name, route); err != nil {
		return nil, err
	}
	c.asked = name
	if route.Type != "" && c.model.Type != route.Type {
		return nil, wire.Newf(wire.ModelTypeMismatch, "The model '%s' is of type %s; this route needs one of type %s.", c.model.ID, c.model.Type, route.Type).With("model")
	}
	return c, nil
}

func (c *call) parseJSON() (name string, err error) {
	route := c.hit.Route
	var values [wire.MaxKeys]peek.Value
	if err := peek.Scan(c.body, route.Keys(), values[:]); err != nil {
		return "", invalidJSON(err)
	}
	c.stream = route.Stream(values[:]) && streams[route.Name]
	if e := route.Check(values[:]); e != nil {
		return "", e
	}
	for i, key := range route.Keys() {
		if key == "messages" || key == "input" {
			c.messages = values[i].Raw
		}
	}
	return route.ModelName(values[:]).String(), nil
}

func invalidJSON(err error) error {
	var se *peek.SyntaxError
	if errors.As(err, &se) {
		return wire.Newf(wire.InvalidJSON, "Invalid JSON body: %s at byte %d.", se.Reason, se.Offset)
	}
	return wire.New(wire.InvalidJSON, "Invalid JSON body.")
}

func (c *call) parseForm() (name string, err error) {
	boundary, ok := peek.Boundary(string(c.ctx.Request.Header.ContentType()))
	if !ok {
		return "", wire.New(wire.UnsupportedMediaType, "This route takes multipart/form-data.")
	}
	route := c.hit.Route
	var parts [wire.MaxKeys]peek.Part
	if err := peek.Multipart(c.body, boundary, route.Keys(), parts[:]); err != nil {
		return "", wire.New(wire.InvalidRequest, "Invalid multipart body.").Because(err)
	}
	if e := route.CheckForm(parts[:]); e != nil {
		return "", e
	}
	return parts[wire.KeyModel].String(), nil
}

// resolve finds the model that a client means; "" is the default of the route's type.
func (s *Server) resolve(name string, route *wire.Route) (*catalog.Model, error) {
	if name == "" {
		if name = s.defaultModel(route); name == "" {
			return nil, wire.NoModel()
		}
	}
	cat := s.names()
	id, err := cat.Resolve(name)
	if err != nil {
		var many *catalog.AmbiguousError
		if errors.As(err, &many) {
			slices.Sort(many.Candidates)
			return nil, wire.Newf(wire.ModelAmbiguous, "The name '%s' fits several models: %v.", many.Name, many.Candidates).With("model")
		}
		return nil, wire.UnknownModel(name)
	}
	m, ok := cat.Model(id)
	if !ok {
		return nil, wire.UnknownModel(name)
	}
	return m, nil
}

func (s *Server) defaultModel(route *wire.Route) string {
	if route.Type == "" {
		return ""
	}
	id, _ := s.cfg.Catalog().Default(route.Type)
	return id
}
