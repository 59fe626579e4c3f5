package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/gateway/models"
	"reveille/gateway/responses"
	"reveille/infra/jsonscan"
	"reveille/infra/state"
)

// responses serves /v1/responses: an engine's chat, encoded as a response.
func (s *Server) responses(r *request) error {
	f := &responses.ResponseWriter{ID: rand.Text(), Began: r.Began, Now: time.Now}
	c, err := r.parseAsChat(f)
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte(responses.ChatPath)}
	if c.stream {
		x.translator = responses.NewStream(f)
	} else {
		x.translate = f.Response
	}
	return responses.NameRequestFields(x.serveInference())
}

// inputTokens serves /v1/responses/input_tokens.
func (s *Server) inputTokens(r *request) error {
	c, err := r.parseAsChat(&responses.ResponseWriter{})
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte(responses.InputTokensPath)}
	x.translate = responses.InputTokens
	return responses.NameRequestFields(x.serveInference())
}

// parseAsChat checks the body of a request and turns it into a chat, whose response f encodes.
func (r *request) parseAsChat(f *responses.ResponseWriter) (*inferenceCall, error) {
	c, err := r.parse()
	if err != nil {
		return nil, err
	}
	f.Model = c.model.ID
	if err := c.prependHistory(f); err != nil {
		return nil, err
	}
	if c.body, f.Echo, err = responses.Translate(c.body, c.model.ID, c.stream); err != nil {
		return nil, err
	}
	if err := c.checkBody(bodycheck.Chat); err != nil {
		return nil, responses.NameRequestFields(err)
	}
	return c, nil
}

// prependHistory puts the items of the conversation that a request continues before its input, and has f store the
// response if the request and the gateway's settings want that.
func (c *inferenceCall) prependHistory(f *responses.ResponseWriter) error {
	q, err := responses.StoreOf(c.body)
	if err != nil {
		return err
	}
	retention := c.s.cfg.ResponseRetention
	if retention == 0 {
		if q.Previous != "" {
			return api.New(api.UnsupportedParameter, "'previous_response_id' is not supported: this gateway stores no responses (--store-responses); send the whole conversation in 'input'.").WithParam("previous_response_id")
		}
		return nil
	}
	var before []json.RawMessage
	if f.Previous = q.Previous; q.Previous != "" {
		last, err := c.storedResponse(q.Previous)
		if err != nil {
			return api.As(err).WithParam("previous_response_id")
		}
		before = last.Items
	}
	references, err := q.References()
	if err != nil {
		return err
	}
	if len(references) > 0 {
		found, err := c.storedItems(references)
		if err != nil {
			return err
		}
		if err := q.Resolve(found, c.bufferItems); err != nil {
			return err
		}
	}
	continues := q.Previous != "" || len(references) > 0
	if !continues && (!q.Wanted || f.ID == "") {
		return nil
	}
	items := q.Items(before)
	if len(items) > state.MaxResponse {
		if !continues {
			return nil // too large to be stored; its response says so
		}
		return errTooLong()
	}
	store := q.Wanted && f.ID != ""
	more := 0
	if continues {
		more = len(items)
	}
	if store {
		more += len(items)
	}
	if err := c.buffered.Reserve(more); err != nil {
		return c.bodyError(err)
	}
	if continues {
		if c.body, err = jsonscan.Set(c.body, "input", items); err != nil {
			return err
		}
	}
	if store {
		tenant, id := c.s.tenant(&c.Key), f.ResponseID()
		f.Keep = func(response, output []byte) bool {
			err := c.s.cfg.Store.PutResponse(context.Background(), tenant, id, responses.NewStored(response, items, output), retention)
			if err != nil {
				c.s.log.Warn("response not stored", "request", c.ID, "error", err)
			}
			return err == nil
		}
	}
	return nil
}

// bufferItems counts n bytes of a conversation, which must be small enough to be stored, besides the request's body.
func (c *inferenceCall) bufferItems(n int) error {
	if n > state.MaxResponse {
		return errTooLong()
	}
	return c.bodyError(c.buffered.Reserve(n))
}

func errTooLong() error {
	return api.Newf(api.RequestTooLarge, "The conversation has more than %d MiB.", state.MaxResponse>>20).WithParam("input")
}

// maxReferencedResponses is the number of stored responses whose items one request may refer to. Each has the items of
// the conversation before it, so that most conversations need the last one.
const maxReferencedResponses = 8

// storedItems returns stored items of the request's key by id.
func (c *inferenceCall) storedItems(ids []string) (map[string]json.RawMessage, error) {
	found := map[string]json.RawMessage{}
	reads := 0
	for _, id := range slices.Backward(ids) {
		if found[id] != nil {
			continue
		}
		if reads++; reads > maxReferencedResponses {
			return nil, api.Newf(api.InvalidType, "The items that 'input' refers to are of more than %d conversations; send the items themselves.", maxReferencedResponses).WithParam("input")
		}
		_, rest, _ := strings.Cut(id, "_")
		last, err := c.storedResponse("resp_" + rest[:min(len(rest), responseIDLength)])
		if err != nil {
			return nil, api.As(err).WithParam("input")
		}
		size := 0
		for _, item := range last.Items {
			size += len(item)
		}
		if err := c.buffered.Reserve(size); err != nil {
			return nil, c.bodyError(err)
		}
		maps.Copy(found, last.ByID())
		if found[id] == nil {
			return nil, api.New(api.ResponseNotFound, "An item that 'input' refers to is not stored.").WithParam("input")
		}
	}
	return found, nil
}

// storedResponse returns a response that the request's key has stored.
func (r *request) storedResponse(id string) (*responses.Stored, error) {
	if r.s.cfg.ResponseRetention == 0 {
		return nil, api.New(api.ResponseNotFound, "This gateway stores no responses (--store-responses).")
	}
	var text []byte
	if isResponseID(id) {
		ctx, stop := r.ClientContext()
		defer stop()
		var err error
		text, err = r.s.cfg.Store.Response(ctx, r.s.tenant(&r.Key), id)
		if err != nil {
			return nil, models.StoreError(err)
		}
	}
	if text == nil {
		return nil, api.New(api.ResponseNotFound, "No stored response has that id: it expired, was evicted or deleted, or belongs to another key.")
	}
	var s responses.Stored
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err // never: it is encrypted with this pool's secret
	}
	return &s, nil
}

// isResponseID reports whether a text has the form of the ids that this gateway gives.
func isResponseID(id string) bool {
	text, ok := strings.CutPrefix(id, "resp_")
	return ok && len(text) == responseIDLength && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

var responseIDLength = len(rand.Text())

// responseItems serves GET /v1/responses/{id}/input_items.
func (s *Server) responseItems(r *request) error {
	stored, err := r.storedResponse(r.Match.ID)
	if err != nil {
		return err
	}
	p := responses.Page{After: r.Query("after"), Ascending: r.Query("order") == "asc"}
	if p.Limit, err = r.QueryLimit(20, 100); err != nil {
		return err
	}
	list, found, err := stored.InputItems(r.Match.ID, p)
	if err != nil {
		return err
	}
	if !found {
		return api.New(api.InvalidType, "'after' names no item of this response.").WithParam("after")
	}
	return r.Reply(200, list)
}

// responseGet serves GET /v1/responses/{id}.
func (s *Server) responseGet(r *request) error {
	stored, err := r.storedResponse(r.Match.ID)
	if err != nil {
		return err
	}
	if r.QueryFlag("stream") {
		return api.New(api.UnsupportedParameter, "'stream' is not supported here.").WithParam("stream")
	}
	return r.Reply(200, stored.Response)
}

// responseDelete serves DELETE /v1/responses/{id}.
func (s *Server) responseDelete(r *request) error {
	if _, err := r.storedResponse(r.Match.ID); err != nil {
		return err
	}
	if err := s.cfg.Store.DropResponse(context.Background(), r.s.tenant(&r.Key), r.Match.ID); err != nil {
		return models.StoreError(err)
	}
	return r.Reply(200, map[string]any{"id": r.Match.ID, "object": "response", "deleted": true})
}
