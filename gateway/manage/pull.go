package manage

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/relay"
)

type doneAnswer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Pull is POST /pull. It makes sure that a model's weights are on a host. It first registers an unknown name if the body
// describes a model. Weights given as a path must already be on the hosts; a host's runner fetches others, and the host is
// woken for it. Nothing is loaded.
func (s *Service) Pull(r *web.Request) error {
	values, err := r.Fields()
	if err != nil {
		return err
	}
	var reg registration
	if err := json.Unmarshal(r.Body(), &reg); err != nil {
		return api.New(api.InvalidType, "A field of the registration has the wrong type.").WithCause(err)
	}
	described := reg.Checkpoint != "" || len(reg.Checkpoints) > 0 || strings.HasPrefix(reg.Recipe, collectionRecipe)
	if described {
		if r.Key.Limited() {
			return api.RestrictedKey()
		}
		if err := r.NeedsLocalAdmin(); err != nil {
			return err
		}
	}
	m, err := s.named(r, values)
	if err != nil && api.As(err).Kind == api.ModelNotFound && described {
		m, err = s.admit(r.Match.Route.ModelName(values).String(), reg)
	}
	if err != nil {
		return err
	}
	return s.answerPull(r, m, r.Match.Route.Stream(values), eventsOfPull(r, m))
}

// pullForm is the format of a pull's messages: the events of the management routes, or the lines of the Ollama dialect. The
// functions append a message.
type pullForm struct {
	media     string                                   // of a stream
	begin     []byte                                   // its first message
	progress  func(b []byte, done, total int64) []byte // in bytes; total is 0 if unknown
	keepalive func(b []byte, done, total int64) []byte
	fail      func(b []byte, err error) []byte
	done      []byte // the last message
	answer    any    // of a call without a stream
}

// progress is one event of a streamed pull.
type progress struct {
	File    string  `json:"file"`
	Index   int     `json:"file_index"`
	Files   int     `json:"total_files"`
	Done    int64   `json:"bytes_downloaded"`
	Total   int64   `json:"bytes_total"`
	Percent float64 `json:"percent"`
}

func eventsOfPull(r *web.Request, m *catalog.Model) pullForm {
	event := func(b []byte, name string, data any) []byte {
		text, _ := json.Marshal(data) // texts and numbers always marshal
		return api.AppendEvent(b, name, text)
	}
	answer := doneAnswer{"success", "Model is installed: " + m.ID}
	id, dialect, name := r.ID, r.Match.Dialect, m.StableID()
	return pullForm{
		media: "text/event-stream; charset=utf-8",
		progress: func(b []byte, done, total int64) []byte {
			percent := 100.0
			if total > 0 {
				percent = float64(done) / float64(total) * 100
			}
			return event(b, "progress", progress{name, 1, 1, done, total, percent})
		},
		keepalive: func(b []byte, _, _ int64) []byte { return append(b, api.Ping...) },
		fail: func(b []byte, err error) []byte {
			return event(b, "error", json.RawMessage(dialect.Body(api.As(err), id)))
		},
		done: event(nil, "complete", answer), answer: answer,
	}
}

// answerPull answers when a model's weights are on a host, or at once with a stream that lasts until then.
func (s *Service) answerPull(r *web.Request, m *catalog.Model, streams bool, form pullForm) error {
	r.Ctx.Response.Header.Set(api.HeaderModel, m.ID)
	remote := models.Remote(m) || catalog.ParseCheckpoint(m.MMProj).Scheme != catalog.SchemePath
	w := s.dir.WeightsOf(s.cfg.Catalog(), m)
	var err error
	switch {
	case remote && s.cfg.Draining():
		return api.GoingAway()
	case remote && streams:
		s.streamPull(r, m, form)
		return nil
	case remote:
		ctx, stop := r.ClientContext()
		defer stop()
		err = s.cfg.Gate.Pull(ctx, m.ID) // one that takes longer than a request is held continues
	case !w.There:
		err = api.Newf(api.ModelFileNotFound, "The files of the model '%s' are not there.", m.ID)
	}
	switch {
	case streams && err != nil:
		r.Send(fasthttp.StatusOK, form.media, form.fail(form.begin, err))
	case streams:
		r.Send(fasthttp.StatusOK, form.media, append(form.progress(form.begin, w.Bytes, w.Bytes), form.done...))
	case err != nil:
		return r.UnlessLeft(err)
	default:
		return r.Reply(fasthttp.StatusOK, form.answer)
	}
	r.Ctx.Response.Header.Set("Cache-Control", "no-cache")
	return nil
}

// pullPoll is how often a streamed pull checks its progress.
const pullPoll = 500 * time.Millisecond

// streamPull answers with a stream until a model's weights are on a host, however long that takes.
func (s *Service) streamPull(r *web.Request, m *catalog.Model, form pullForm) {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &pulling{s: s, model: m.ID, form: form, buf: form.begin, ended: make(chan error, 1), poll: time.NewTicker(pullPoll), sent: time.Now(), cancel: cancel}
	p.watch = r.Watch(func() { cancel(relay.ErrGone) })
	go func() {
		err := s.cfg.Gate.Pull(ctx, m.ID)
		for errors.Is(err, api.ModelLoading) && ctx.Err() == nil { // the wait timed out, the pull continues
			err = s.cfg.Gate.Pull(ctx, m.ID)
		}
		p.ended <- err
	}()
	r.Answered(fasthttp.StatusOK)
	r.Ctx.Response.Header.Set("Cache-Control", "no-cache")
	r.Ctx.SetContentType(form.media)
	r.Ctx.SetBodyStream(p, -1)
	r.Ctx.Response.ImmediateHeaderFlush = true
}

// pulling is the body of a streamed pull: a message for each observed progress, a keepalive after a long time without
// any, and a final message. fasthttp reads and closes it in one goroutine.
type pulling struct {
	s      *Service
	model  string
	form   pullForm
	ended  chan error // capacity 1
	poll   *time.Ticker
	watch  *relay.Watch
	cancel context.CancelCauseFunc

	buf         []byte
	sent        time.Time // when the last message was
	done, total int64     // bytes in the last message
	over        bool
}

// Read waits for the next message and returns it.
func (p *pulling) Read(b []byte) (int, error) {
	for len(p.buf) == 0 {
		if p.over {
			return 0, io.EOF
		}
		select {
		case err := <-p.ended:
			p.over = true
			switch {
			case errors.Is(err, relay.ErrGone):
			case err != nil:
				p.buf = p.form.fail(p.buf, err)
			default:
				p.buf = append(p.form.progress(p.buf, p.total, p.total), p.form.done...)
			}
		case <-p.poll.C:
			st, loading := p.s.cfg.Gate.ProgressOf(p.model)
			if loading && st.BytesTotal > 0 && st.BytesDone != p.done {
				p.done, p.total, p.sent = st.BytesDone, st.BytesTotal, time.Now()
				p.buf = p.form.progress(p.buf, p.done, p.total)
			} else if time.Since(p.sent) >= p.s.cfg.Keepalive {
				p.buf, p.sent = p.form.keepalive(p.buf, p.done, p.total), time.Now()
			}
		}
	}
	n := copy(b, p.buf)
	p.buf = p.buf[n:]
	return n, nil
}

// Close ends the wait; the pull continues.
func (p *pulling) Close() error {
	p.watch.Stop()
	p.poll.Stop()
	p.cancel(nil)
	return nil
}

// Delete is POST /delete, see remove.
func (s *Service) Delete(r *web.Request) error {
	values, err := r.Fields()
	if err != nil {
		return err
	}
	name := r.Match.Route.ModelName(values)
	id, why := s.dir.Withheld(name.String())
	if why != "" && r.Key.Allows(id) {
		err = s.forget(id)
	} else if m, e := s.named(r, values); e == nil {
		id, err = m.ID, s.remove(r, m)
	} else if err = e; api.As(err).Kind == api.ModelNotFound {
		err = api.Newf(api.DeleteUnknown, "The model '%.200s' does not exist.", name.String()).WithParam("model_name")
	}
	if err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, doneAnswer{"success", "Deleted model: " + id})
}

// remove unloads a model, and deletes its registration if it has one. It leaves the files of the operator's catalog alone.
func (s *Service) remove(r *web.Request, m *catalog.Model) error {
	ctx, stop := r.ClientContext()
	defer stop()
	if err := s.dir.EnsureGone(ctx, m.ID); err != nil {
		return err
	}
	if strings.HasPrefix(m.ID, models.UserSpace) && s.cfg.Overlay != nil {
		return s.forget(m.ID)
	}
	return nil
}

// forget removes a registered model from the catalog.
func (s *Service) forget(id string) error { return s.setRegistered(id, "") }
