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
	*call
	q       *ollama.Request
	keep    time.Duration // keep_alive
	keeping bool          // it is set
}

// ollamaCall checks the body of a request in Ollama's form.
func (r *request) ollamaCall() (*ollamaCall, error) {
	c, err := r.parse()
	if err != nil {
		return nil, err
	}
	o := &ollamaCall{call: c}
	if o.q, err = ollama.Parse(c.body); err != nil {
		return nil, err
	}
	size, err := o.q.Context()
	if err != nil {
		return nil, err
	}
	if o.Manages() { // it applies to all users of the model
		o.context = size
	}
	o.keep, o.keeping, err = o.q.KeepAlive()
	return o, err
}

// ollamaChat serves /api/chat: an engine's chat, streamed as lines. Without messages it loads or unloads the model.
func (s *Server) ollamaChat(r *request) error {
	o, err := r.ollamaCall()
	if err != nil {
		return err
	}
	if len(o.q.Messages) == 0 {
		return o.bare(false)
	}
	if o.body, err = o.q.Chat(o.model.ID, o.stream); err != nil {
		return err
	}
	if err := o.checkBody(bodycheck.Chat); err != nil {
		return err
	}
	return o.serve(ollama.ChatPath, false)
}

// ollamaGenerate serves /api/generate in the same way.
func (s *Server) ollamaGenerate(r *request) error {
	o, err := r.ollamaCall()
	if err != nil {
		return err
	}
	if o.q.Prompt == "" && len(o.q.Images) == 0 {
		return o.bare(true)
	}
	var path string
	if o.body, path, err = o.q.Generate(o.model.ID, o.stream); err != nil {
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

// form returns the format of the answer. x is the exchange that delivers it, nil for none.
func (o *ollamaCall) form(generate bool, x *exchange) *ollama.ResponseWriter {
	name := o.requestedModel
	if name == "" {
		name = o.model.ID
	}
	load := func() time.Duration { return 0 }
	if x != nil {
		load = func() time.Duration { return x.route.info.Waited }
	}
	return &ollama.ResponseWriter{Model: name, Generate: generate, Began: o.Began, Now: time.Now, Load: load}
}

// serve starts an exchange and answers in Ollama's format.
func (o *ollamaCall) serve(path string, generate bool) error {
	load, err := o.loadSized()
	if err != nil {
		return err
	}
	x := &exchange{call: o.call, path: []byte(path), onComplete: o.after(), load: load}
	f := o.form(generate, x)
	if o.stream {
		x.translator = ollama.NewStream(f)
	} else {
		x.translate = f.Answer
	}
	return x.start()
}

// ollamaEmbed serves /api/embed.
func (s *Server) ollamaEmbed(r *request) error {
	o, err := r.ollamaCall()
	if err != nil {
		return err
	}
	return o.embed(o.q.Input, (*ollama.ResponseWriter).Embeddings)
}

// ollamaEmbeddings serves /api/embeddings, which takes one text.
func (s *Server) ollamaEmbeddings(r *request) error {
	o, err := r.ollamaCall()
	if err != nil {
		return err
	}
	text, err := jsonscan.Marshal(o.q.Prompt)
	if err != nil {
		return err
	}
	return o.embed(text, (*ollama.ResponseWriter).Embedding)
}

// embed answers with the embeddings of input, which may be empty: then the model is only loaded.
func (o *ollamaCall) embed(input json.RawMessage, tell func(*ollama.ResponseWriter, []byte) ([]byte, error)) (err error) {
	if o.body, err = o.q.Texts(o.model.ID, input); err != nil {
		return err
	}
	if o.body == nil {
		return o.loaded(func() ([]byte, error) { return tell(o.form(false, nil), nil) })
	}
	load, err := o.loadSized()
	if err != nil {
		return err
	}
	x := &exchange{call: o.call, onComplete: o.after(), load: load}
	f := o.form(false, x)
	return x.embed(func(raw []byte) ([]byte, error) { return tell(f, raw) })
}

// bare serves a request without a prompt: it loads the model, or unloads it if keep_alive is 0.
func (o *ollamaCall) bare(generate bool) error {
	switch {
	case o.keeping && o.keep == 0 && !o.Manages():
		return api.New(api.InsufficientScope, "This key may not unload models; it needs the scope 'manage'.")
	case !o.keeping || o.keep != 0:
		return o.loaded(func() ([]byte, error) { return o.form(generate, nil).Ended("load"), nil })
	}
	ctx, stop := o.ClientContext()
	defer stop()
	if err := o.s.dir.EnsureGone(ctx, o.model.ID); err != nil {
		return o.UnlessLeft(err)
	}
	o.sendLine(o.form(generate, nil).Ended("unload"))
	return nil
}

// loaded answers when the model is loaded, for which it waits as any other request.
func (o *ollamaCall) loaded(tell func() ([]byte, error)) error {
	load, err := o.loadSized()
	if err != nil {
		return err
	}
	x := &exchange{call: o.call, onComplete: o.after(), load: load}
	x.onLoaded = func() error {
		told, err := tell()
		if err == nil {
			x.modelHeaders()
			o.sendLine(told)
		}
		return err
	}
	return x.start()
}

// sendLine answers with one object.
func (o *ollamaCall) sendLine(object []byte) {
	contentType := api.ContentType
	if o.stream {
		contentType = api.Ollama.StreamType()
	}
	o.Ctx.Response.Header.Set(api.HeaderModel, o.model.ID)
	o.Send(fasthttp.StatusOK, contentType, object)
}

// queueLimit bounds the queueing of a load, which waits only for the pool's state.
const queueLimit = 10 * time.Second

// loadSized returns a function that queues the load of an unloaded model with the context size that the request asks
// for, nil if it asks for none. The request then waits for that load as for any other.
func (o *ollamaCall) loadSized() (func(*exchange) error, error) {
	options, err := o.sized()
	if err != nil || options == nil {
		return nil, err
	}
	return func(x *exchange) error {
		if err := (loadCharge{x}).CountLoad(); err != nil {
			return err
		}
		ctx, stop := context.WithTimeout(o.s.life, min(x.route.wait.limit, queueLimit))
		defer stop()
		_, _, err := o.s.cfg.Gate.Load(ctx, scheduling.LoadRequest{Model: o.model.ID, Options: options})
		return err
	}, nil
}

// sized returns the load options for the request's context size, nil if it sets none or the model's recipe has no such
// option. The size applies to all users of the model, so a key without manage gets the model as configured.
func (o *ollamaCall) sized() (json.RawMessage, error) {
	const name = "ctx_size"
	if o.context == 0 {
		return nil, nil
	}
	if _, has := o.s.cfg.Catalog().Recipes[o.model.Recipe].Options[name]; !has {
		return nil, nil
	}
	options, err := o.s.dir.OptionsOf(o.model, map[string]json.RawMessage{name: json.RawMessage(strconv.FormatInt(o.context, 10))})
	if err != nil {
		return nil, err
	}
	return json.RawMessage(options.Canonical()), nil
}

// keepLimit bounds the work for keep_alive after an answer.
const keepLimit = time.Minute

// after returns the work that keep_alive requires once the answer is complete, nil for none. No client waits for it.
func (o *ollamaCall) after() func() {
	if !o.keeping {
		return nil
	}
	s, model, keep, obey := o.s, o.model.ID, o.keep, o.s.keepAlive
	if !o.Manages() {
		if keep <= 0 {
			return nil
		}
		obey = o.s.shortenIdle
	}
	return func() {
		if s.life.Err() != nil {
			return
		}
		s.work.Go(func() {
			ctx, cancel := context.WithTimeout(s.life, keepLimit)
			defer cancel()
			if err := obey(ctx, model, keep); err != nil {
				s.log.Warn("keep_alive could not be obeyed", "model", model, "error", err)
			}
		})
	}
}

// keepAlive unloads a model, or sets how long it may be unused; below 0 means for ever.
func (s *Server) keepAlive(ctx context.Context, model string, d time.Duration) error {
	if d == 0 {
		return s.dir.EnsureGone(ctx, model)
	}
	ms := int64(-1)
	if d > 0 {
		ms = max(1, d.Milliseconds())
	}
	return s.setIdle(ctx, model, strconv.FormatInt(ms, 10))
}

// minIdle is the shortest idle time that a key without manage can give a model.
const minIdle = time.Minute

// shortenIdle is keepAlive for a key without manage: it sets the idle time between minIdle and the configured one. It
// leaves alone a model that is configured to stay, and an idle time that only a manager can have set.
func (s *Server) shortenIdle(ctx context.Context, model string, d time.Duration) error {
	configured, known := s.dir.ConfiguredIdle(s.cfg.Catalog(), model)
	if !known || configured <= minIdle {
		return nil
	}
	if text, set := s.dir.Tables.Of(state.IdleTTL)[model]; set {
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

// setIdle writes a model's idle time in ms, below 0 for ever; "" leaves it to the configuration.
func (s *Server) setIdle(ctx context.Context, model, ms string) error {
	if s.dir.Tables.Of(state.IdleTTL)[model] == ms {
		return nil
	}
	return s.dir.Tables.Set(ctx, state.IdleTTL, model, ms)
}
