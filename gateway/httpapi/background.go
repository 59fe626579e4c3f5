package httpapi

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/rpc"
)

// markBackground finds out whether the request runs in the background: because it or its key says so, or by the first
// rule of the models file that fits. Such a request loads no model, is no use of one, and waits for all others.
func (c *inferenceCall) markBackground() {
	h := &c.Ctx.Request.Header
	asked := h.Peek(rpc.HeaderPriority)
	switch {
	case c.Key.Priority(asked) != "background":
		if len(asked) == 0 {
			c.background = c.backgroundByRule()
		}
	case string(h.Peek(api.HeaderColdWait)) == "fail":
		c.background = catalog.BackgroundRefuse
	case string(h.Peek(api.HeaderColdWait)) == "fallback":
		c.background = catalog.BackgroundLoaded
	default:
		c.background = catalog.BackgroundWait
	}
	if c.background != "" {
		c.passive = true
		c.s.m.background.Inc()
	}
}

// priority returns the priority of the request, "" for normal.
func (c *inferenceCall) priority() string {
	if c.background != "" {
		return "background"
	}
	return c.Key.Priority(c.Ctx.Request.Header.Peek(rpc.HeaderPriority))
}

func (c *inferenceCall) backgroundByRule() catalog.BackgroundPolicy {
	rules := c.s.cfg.Catalog().Background
	if len(rules) == 0 {
		return ""
	}
	marks := sync.OnceValues(c.readMarks)
	for i := range rules {
		if c.fits(&rules[i], marks) {
			return rules[i].Then
		}
	}
	return ""
}

// fits reports whether all conditions of a rule hold.
func (c *inferenceCall) fits(r *catalog.BackgroundRule, marks func() (map[string]string, []byte)) bool {
	h := &c.Ctx.Request.Header
	if r.Path != "" && !catalog.MatchPattern(r.Path, string(c.Ctx.Path())) {
		return false
	}
	for name, pattern := range r.Headers {
		if v := h.Peek(name); len(v) == 0 || !catalog.MatchPattern(pattern, string(v)) {
			return false
		}
	}
	if len(r.Metadata)+len(r.LastMessage) == 0 {
		return true
	}
	if c.Match.Route.Body != api.BodyJSON {
		return false
	}
	metadata, message := marks()
	for name, pattern := range r.Metadata {
		if !catalog.MatchPattern(pattern, metadata[name]) {
			return false
		}
	}
	begins := func(beginning string) bool { return bytes.HasPrefix(message, []byte(beginning)) }
	return len(r.LastMessage) == 0 || slices.ContainsFunc(r.LastMessage, begins)
}

// readMarks reads what rules look at in a body: the texts in its metadata, and the text of its last message or its
// prompt.
func (c *inferenceCall) readMarks() (metadata map[string]string, message []byte) {
	metadata = map[string]string{}
	w := jsonscan.WalkOf(c.body)
	w.Object(func(name []byte) bool {
		switch string(name) {
		case "metadata":
			w.Object(func(key []byte) bool {
				metadata[string(key)] = w.Raw().String()
				return true
			})
		case "messages", "input", "prompt":
			message = lastText(w.Raw())
		}
		return true
	})
	return metadata, message
}

// lastText returns a text, the last one of a list, or that of the last message of a list: its content or the first text
// part of that.
func lastText(v jsonscan.Value) (text []byte) {
	switch v.Kind {
	case jsonscan.String:
		return bytes.TrimSpace(v.Bytes())
	case jsonscan.Array:
		var last jsonscan.Value
		w := jsonscan.WalkOf(v.Raw)
		w.Array(func() bool { last = w.Raw(); return true })
		if last.Kind != jsonscan.Object {
			return lastText(last)
		}
		w = jsonscan.WalkOf(last.Raw)
		w.Object(func(name []byte) bool {
			if string(name) == "content" {
				text = firstText(w.Raw())
			}
			return true
		})
	}
	return text
}

// firstText returns a message's content: a text, or the first text among its parts.
func firstText(v jsonscan.Value) (text []byte) {
	if v.Kind != jsonscan.Array {
		return lastText(v)
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		w.Object(func(name []byte) bool {
			if string(name) == "text" {
				text = lastText(w.Raw())
			}
			return true
		})
		return text == nil
	})
	return text
}

// backgroundPoll is how often a request in the background looks whether its model has been loaded for another.
const backgroundPoll = 200 * time.Millisecond

// awaitLoaded returns the endpoint of a request in the background once its model is loaded, without loading it. It
// returns false if that is not the case by the given time; the zero time leaves only the request's own limit.
func (x *exchange) awaitLoaded(until time.Time) (bool, error) {
	s := x.call.s
	for {
		if x.routing.endpoint, x.routing.hasEndpoint = s.cfg.Gate.EndpointFor(x.call.model.ID, x.call.body); x.routing.hasEndpoint {
			x.routing.info.Waited = time.Since(x.call.Began)
			return true, nil
		}
		wait := min(backgroundPoll, x.routing.wait.limit-time.Since(x.call.Began))
		switch cause := x.try.link.Cause(); {
		case cause != nil:
			return false, cause
		case s.draining.Load():
			return false, api.ShuttingDown()
		case wait <= 0:
			return false, x.call.refuseBackground()
		case !until.IsZero() && !time.Now().Before(until):
			return false, nil
		}
		time.Sleep(wait)
	}
}

// refuseBackground is the error for a request in the background whose model is not loaded.
func (c *inferenceCall) refuseBackground() error {
	c.s.m.backgroundRefused.Inc()
	return api.Newf(api.Background, "The model '%s' is not loaded, and requests in the background do not load it.", c.model.ID).WithParam("model")
}
