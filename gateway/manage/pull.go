package manage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
)

type doneResponse struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Pull is POST /pull. It makes sure that a model's weights are on a host. It first registers an unknown name if the
// body describes a model. Weights given as a path must already be on the hosts; a host's runner fetches others, and the
// host is woken for it. Nothing is loaded.
func (s *Service) Pull(r *web.Request) error {
	name, err := r.ModelName()
	if err != nil {
		return err
	}
	var reg registration
	if err := r.Decode(&reg); err != nil {
		return err
	}
	described := reg.Checkpoint != "" || len(reg.Checkpoints) > 0
	if described {
		if r.Key.Limited() {
			return api.RestrictedKey()
		}
		if err := r.NeedsLocalAdmin(); err != nil {
			return err
		}
	}
	m, err := s.namedModel(r)
	if err != nil && api.As(err).Kind == api.ModelNotFound && described {
		m, err = s.registerModel(name.String(), reg)
	}
	if err != nil {
		return err
	}
	return s.servePull(r, m, pullEvents(r, m))
}

// pullState is what a streamed pull has to say.
type pullState struct {
	done, total int64 // bytes; total is 0 if unknown
	unchanged   bool  // nothing has changed since the last message
	finished    bool
	err         error // with over
}

// pullFormat is the format of a pull's messages: the events of the management routes, or the lines of the Ollama
// dialect.
type pullFormat struct {
	media   string // of a stream
	encode  func(b []byte, p pullState) []byte
	respond any // of a call without a stream
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

func pullEvents(r *web.Request, m *catalog.Model) pullFormat {
	event := func(b []byte, name string, data any) []byte {
		text, _ := json.Marshal(data) // texts and numbers always marshal
		return api.AppendEvent(b, name, text)
	}
	done := doneResponse{"success", "Model is installed: " + m.ID}
	id, dialect, name := r.ID, r.Match.Dialect, m.StableID()
	say := func(b []byte, p pullState) []byte {
		percent := 100.0
		if p.total > 0 {
			percent = float64(p.done) / float64(p.total) * 100
		}
		step := progress{name, 1, 1, p.done, p.total, percent}
		switch {
		case p.err != nil:
			return event(b, "error", json.RawMessage(dialect.Body(api.As(p.err), id)))
		case p.finished:
			return event(event(b, "progress", step), "complete", done)
		case p.unchanged:
			return append(b, api.Ping...)
		}
		return event(b, "progress", step)
	}
	return pullFormat{media: "text/event-stream; charset=utf-8", encode: say, respond: done}
}

// servePull responds when a model's weights are on a host, or immediately with a stream that lasts until then.
func (s *Service) servePull(r *web.Request, m *catalog.Model, form pullFormat) error {
	r.Ctx.Response.Header.Set(api.HeaderModel, m.ID)
	pull := func(ctx context.Context) error { return s.cfg.Gate.Pull(ctx, m.ID) }
	if remote := models.Remote(m) || catalog.ParseCheckpoint(m.MMProj).Scheme != catalog.SchemePath; !remote {
		there := s.registry.WeightsOf(s.cfg.Catalog(), m).There
		pull = func(context.Context) error {
			if there {
				return nil
			}
			return api.Newf(api.ModelFileNotFound, "The files of the model '%s' are missing.", m.ID)
		}
	} else if s.cfg.Draining() {
		return api.ShuttingDown()
	}
	if r.Streams() {
		s.streamPull(r, m, form, pull)
		return nil
	}
	ctx, stop := r.ClientContext()
	defer stop()
	if err := pull(ctx); err != nil { // one that takes longer than a request is held continues
		return r.UnlessClientGone(err)
	}
	return r.Reply(fasthttp.StatusOK, form.respond)
}

// pullPoll is how often a streamed pull checks its progress.
const pullPoll = 500 * time.Millisecond

// streamPull responds with a stream until a model's weights are on a host, however long that takes: a message for each
// observed progress, and one after a long time without any. The pull continues when the client leaves.
func (s *Service) streamPull(r *web.Request, m *catalog.Model, form pullFormat, pull func(context.Context) error) {
	ctx, stop := r.ClientContext()
	r.CountResponse(fasthttp.StatusOK)
	r.Ctx.Response.Header.Set("Cache-Control", "no-cache")
	r.Ctx.SetContentType(form.media)
	r.Stream(func(w *bufio.Writer) {
		defer stop()
		ended := make(chan error, 1)
		go func() {
			err := pull(ctx)
			for errors.Is(err, api.ModelLoading) && ctx.Err() == nil { // the wait timed out, the pull continues
				err = pull(ctx)
			}
			ended <- err
		}()
		poll := time.NewTicker(pullPoll)
		defer poll.Stop()
		now, sentAt := pullState{unchanged: true}, time.Now()
		for buf := form.encode(nil, now); ; {
			if _, err := w.Write(buf); err != nil || w.Flush() != nil || now.finished {
				return
			}
			for buf = buf[:0]; len(buf) == 0; {
				select {
				case now.err = <-ended:
					now.finished, now.done = true, now.total
				case <-poll.C:
					st, loading := s.cfg.Gate.ProgressOf(m.ID)
					news := loading && st.BytesTotal > 0 && st.BytesDone != now.done
					if !news && time.Since(sentAt) < s.cfg.Keepalive {
						continue
					}
					if now.unchanged = !news; news {
						now.done, now.total = st.BytesDone, st.BytesTotal
					}
				}
				buf, sentAt = form.encode(buf, now), time.Now()
			}
		}
	})
}

// Delete is POST /delete, see remove.
func (s *Service) Delete(r *web.Request) error {
	name, err := r.ModelName()
	if err != nil {
		return err
	}
	id, why := s.registry.Withheld(name.String())
	if why != "" && r.Key.Allows(id) && !s.registry.IsName(name.String()) {
		err = s.setRegistered(id, "")
	} else if m, e := s.namedModel(r); e == nil {
		id, err = m.ID, s.remove(r, m)
	} else if err = e; api.As(err).Kind == api.ModelNotFound {
		err = api.Newf(api.DeleteUnknown, "The model '%.200s' does not exist.", name.String()).WithParam("model_name")
	}
	if err != nil {
		return r.UnlessClientGone(err)
	}
	return r.Reply(fasthttp.StatusOK, doneResponse{"success", "Deleted model: " + id})
}

// remove unloads a model, and deletes its registration if it has one. It leaves the files of the operator's catalog
// alone.
func (s *Service) remove(r *web.Request, m *catalog.Model) error {
	ctx, stop := r.ClientContext()
	defer stop()
	if err := s.registry.EnsureGone(ctx, m.ID); err != nil {
		return err
	}
	if strings.HasPrefix(m.ID, models.UserSpace) {
		return s.setRegistered(m.ID, "")
	}
	return nil
}
