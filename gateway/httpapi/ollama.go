package httpapi

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/gateway/ollama"
	"reveille/gateway/scheduling"
	"reveille/infra/jsonscan"
	"reveille/infra/state"
)

// ollamaCall is a call in Ollama's form.
type ollamaCall struct {
	*inferenceCall
	query        *ollama.Request
	keepAlive    time.Duration // keep_alive
	hasKeepAlive bool          // it is set
	context      int64         // tokens of context that a load for the request asks for, 0 for none
}

// parseOllama checks the body of a request in Ollama's form.
func (r *request) parseOllama() (*ollamaCall, error) {
	c, err := r.parse()
	if err != nil {
		return nil, err
	}
	o := &ollamaCall{inferenceCall: c}
	if o.query, err = ollama.Parse(c.body); err != nil {
		return nil, err
	}
	size, err := o.query.Context()
	if err != nil {
		return nil, err
	}
	if o.Manages() { // it applies to all users of the model
		o.context = size
	}
	o.keepAlive, o.hasKeepAlive, err = o.query.KeepAlive()
	return o, err
}

// ollamaChat serves /api/chat: an engine's chat, streamed as lines. Without messages it loads or unloads the model.
func (s *Server) ollamaChat(r *request) error {
	o, err := r.parseOllama()
	if err != nil {
		return err
	}
	if len(o.query.Messages) == 0 {
		return o.handleEmptyPrompt(false)
	}
	if o.body, err = o.query.Chat(o.model.ID, o.stream); err != nil {
		return err
	}
	if err := o.checkBody(bodycheck.Chat); err != nil {
		return err
	}
	return o.serve(ollama.ChatPath, false)
}

// ollamaGenerate serves /api/generate in the same way.
func (s *Server) ollamaGenerate(r *request) error {
	o, err := r.parseOllama()
	if err != nil {
		return err
	}
	if o.query.Prompt == "" && len(o.query.Images) == 0 {
		return o.handleEmptyPrompt(true)
	}
	var path string
	if o.body, path, err = o.query.Generate(o.model.ID, o.stream); err != nil {
		return err
	}
	fields := bodycheck.Chat
	if path == ollama.CompletionPath {
		fields = bodycheck.Completions
	}
	if err := o.checkBody(fields); err != nil {
		return err
	}
	return o.serve(path, true)
}

// responseWriter returns the format of the response. x is the exchange that delivers it, nil for none.
func (o *ollamaCall) responseWriter(generate bool, x *exchange) *ollama.ResponseWriter {
	name := o.requestedModel
	if name == "" {
		name = o.model.ID
	}
	load := func() time.Duration { return 0 }
	if x != nil {
		load = func() time.Duration { return x.routing.info.Waited }
	}
	return &ollama.ResponseWriter{Model: name, Generate: generate, Began: o.Began, Now: time.Now, Load: load}
}

// serve starts an exchange and responds in Ollama's format.
func (o *ollamaCall) serve(path string, generate bool) error {
	x, err := o.newExchange()
	if err != nil {
		return err
	}
	x.path = []byte(path)
	f := o.responseWriter(generate, x)
	if o.stream {
		x.translator = ollama.NewStream(f)
	} else {
		x.translate = f.Response
	}
	return x.serveInference()
}

// ollamaEmbed serves /api/embed.
func (s *Server) ollamaEmbed(r *request) error {
	o, err := r.parseOllama()
	if err != nil {
		return err
	}
	return o.serveEmbed(o.query.Input, (*ollama.ResponseWriter).Embeddings)
}

// ollamaEmbeddings serves /api/embeddings, which takes one text.
func (s *Server) ollamaEmbeddings(r *request) error {
	o, err := r.parseOllama()
	if err != nil {
		return err
	}
	text, err := jsonscan.Marshal(o.query.Prompt)
	if err != nil {
		return err
	}
	return o.serveEmbed(text, (*ollama.ResponseWriter).Embedding)
}

// serveEmbed responds with the embeddings of input, which may be empty: then the model is only loaded.
func (o *ollamaCall) serveEmbed(input json.RawMessage, encode func(*ollama.ResponseWriter, []byte) ([]byte, error)) (err error) {
	if o.body, err = o.query.Texts(o.model.ID, input); err != nil {
		return err
	}
	if o.body == nil {
		return o.respondWhenLoaded(func() ([]byte, error) { return encode(o.responseWriter(false, nil), nil) })
	}
	x, err := o.newExchange()
	if err != nil {
		return err
	}
	f := o.responseWriter(false, x)
	return x.serveEmbeddings(func(raw []byte) ([]byte, error) { return encode(f, raw) })
}

// handleEmptyPrompt serves a request without a prompt: it loads the model, or unloads it if keep_alive is 0.
func (o *ollamaCall) handleEmptyPrompt(generate bool) error {
	switch {
	case o.hasKeepAlive && o.keepAlive == 0 && !o.Manages():
		return api.New(api.InsufficientScope, "This key may not unload models; it needs the scope 'manage'.")
	case !o.hasKeepAlive || o.keepAlive != 0:
		return o.respondWhenLoaded(func() ([]byte, error) { return o.responseWriter(generate, nil).EmptyResponse("load"), nil })
	}
	ctx, stop := o.ClientContext()
	defer stop()
	if err := o.s.registry.EnsureGone(ctx, o.model.ID); err != nil {
		return o.UnlessClientGone(err)
	}
	o.sendLine(o.responseWriter(generate, nil).EmptyResponse("unload"))
	return nil
}

// respondWhenLoaded responds when the model is loaded, for which it waits as any other request.
func (o *ollamaCall) respondWhenLoaded(encode func() ([]byte, error)) error {
	x, err := o.newExchange()
	if err != nil {
		return err
	}
	x.onLoaded = func() error {
		line, err := encode()
		if err == nil {
			x.modelHeaders()
			o.sendLine(line)
		}
		return err
	}
	return x.serveInference()
}

// sendLine responds with one object.
func (o *ollamaCall) sendLine(object []byte) {
	contentType := api.ContentType
	if o.stream {
		contentType = api.Ollama.StreamType()
	}
	o.Ctx.Response.Header.Set(api.HeaderModel, o.model.ID)
	o.Send(fasthttp.StatusOK, contentType, object)
}

// queueTimeout bounds the queueing of a load, which waits only for the pool's state.
const queueTimeout = 10 * time.Second

// newExchange makes the request's exchange. If the model is not loaded, it queues a load with the context size that the
// request asks for, where the model's recipe has such an option, and waits for it as for any other. The size applies to
// all users of the model, so a key without manage gets the model as configured.
func (o *ollamaCall) newExchange() (*exchange, error) {
	const name = "ctx_size"
	x := &exchange{call: o.inferenceCall, onComplete: o.keepAliveWork()}
	if _, has := o.s.cfg.Catalog().Recipes[o.model.Recipe].Options[name]; !has || o.context == 0 {
		return x, nil
	}
	options, err := o.s.registry.OptionsOf(o.model, map[string]json.RawMessage{name: json.RawMessage(strconv.FormatInt(o.context, 10))})
	if err != nil {
		return nil, err
	}
	x.load = func() error {
		if err := (loadCharge{o.Account, x}).CountLoad(); err != nil {
			return err
		}
		ctx, stop := context.WithTimeoutCause(o.s.lifetime, min(x.routing.wait.limit, queueTimeout), x.errNotReady())
		defer stop()
		_, _, err := o.s.cfg.Gate.Load(ctx, scheduling.LoadRequest{Model: o.model.ID, Options: json.RawMessage(options.Canonical())})
		return err
	}
	return x, nil
}

// keepAliveTimeout is the timeout for applying keep_alive after a response.
const keepAliveTimeout = time.Minute

// keepAliveWork returns the work that keep_alive requires once the response is complete, nil for none. No client waits
// for it.
func (o *ollamaCall) keepAliveWork() func() {
	if !o.hasKeepAlive {
		return nil
	}
	s, model, keep, apply := o.s, o.model.ID, o.keepAlive, o.s.applyKeepAlive
	if !o.Manages() {
		if keep <= 0 {
			return nil
		}
		apply = o.s.shortenIdle
	}
	return func() {
		if s.lifetime.Err() != nil {
			return
		}
		s.background.Go(func() {
			ctx, cancel := context.WithTimeout(s.lifetime, keepAliveTimeout)
			defer cancel()
			if err := apply(ctx, model, keep); err != nil {
				s.log.Warn("could not apply keep_alive", "model", model, "error", err)
			}
		})
	}
}

// applyKeepAlive unloads a model, or sets its idle timeout; negative means forever.
func (s *Server) applyKeepAlive(ctx context.Context, model string, d time.Duration) error {
	if d == 0 {
		return s.registry.EnsureGone(ctx, model)
	}
	ms := int64(-1)
	if d > 0 {
		ms = max(1, d.Milliseconds())
	}
	return s.setIdle(ctx, model, strconv.FormatInt(ms, 10))
}

// minIdle is the shortest idle time that a key without manage can give a model.
const minIdle = time.Minute

// shortenIdle is applyKeepAlive for a key without manage: it sets the idle time between minIdle and the configured one.
// It leaves alone a model that is configured to stay, and an idle time that only a manager can have set.
func (s *Server) shortenIdle(ctx context.Context, model string, d time.Duration) error {
	configured, known := s.registry.ConfiguredIdle(s.cfg.Catalog(), model)
	if !known || configured <= minIdle {
		return nil
	}
	if text, set := s.registry.Tables.Of(state.IdleTTL)[model]; set {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < minIdle.Milliseconds() || ms > configured.Milliseconds() {
			return nil
		}
	}
	if d >= configured {
		return s.setIdle(ctx, model, "")
	}
	return s.setIdle(ctx, model, strconv.FormatInt(max(d, minIdle).Milliseconds(), 10))
}

// setIdle writes a model's idle time in ms, negative for forever; "" leaves it to the configuration.
func (s *Server) setIdle(ctx context.Context, model, ms string) error {
	if s.registry.Tables.Of(state.IdleTTL)[model] == ms {
		return nil
	}
	return s.registry.Tables.Set(ctx, state.IdleTTL, model, ms)
}
