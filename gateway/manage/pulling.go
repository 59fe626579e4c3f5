package manage

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/relay"
)

// awaitPull answers when a model's weights are on a host. A pull that takes longer than a request is held continues.
func (s *Service) awaitPull(r *web.Request, m *catalog.Model, form pullForm) error {
	ctx, stop := r.ClientContext()
	defer stop()
	if err := s.cfg.Gate.Pull(ctx, m.ID); err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, form.answer())
}

// pullLook is how often a streamed pull checks its progress.
const pullLook = 500 * time.Millisecond

// streamPull answers with a stream until a model's weights are on a host, however long that takes.
func (s *Service) streamPull(r *web.Request, m *catalog.Model, form pullForm) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &pulling{
		s: s, r: r, model: m, form: form, buf: form.begun(nil), done: make(chan error, 1), look: time.NewTicker(pullLook), told: time.Now(), cancel: cancel,
	}
	p.watch = r.Watch(func() { cancel(relay.ErrGone) })
	go func() {
		err := s.cfg.Gate.Pull(ctx, m.ID)
		for errors.Is(err, api.ModelLoading) && ctx.Err() == nil { // the wait timed out, the pull continues
			err = s.cfg.Gate.Pull(ctx, m.ID)
		}
		p.done <- err
	}()
	r.Answered(fasthttp.StatusOK)
	r.Ctx.Response.Header.Set("Cache-Control", "no-cache")
	r.Ctx.SetContentType(form.media())
	r.Ctx.SetBodyStream(p, -1)
	r.Ctx.Response.ImmediateHeaderFlush = true
	return nil
}

// pulling is the body of a streamed pull: a message for each observed progress, a keepalive after a long time without
// any, and a final message. fasthttp reads and closes it in one goroutine.
type pulling struct {
	s      *Service
	r      *web.Request
	model  *catalog.Model
	form   pullForm
	done   chan error // capacity 1: how the pull ended
	look   *time.Ticker
	watch  *relay.Watch
	cancel context.CancelCauseFunc

	buf         []byte
	told        time.Time // when the last message was sent
	last, total int64     // bytes in the last message
	over        bool
}

// Read waits for the next message and returns it.
func (p *pulling) Read(b []byte) (int, error) {
	for len(p.buf) == 0 {
		if p.over {
			return 0, io.EOF
		}
		select {
		case err := <-p.done:
			p.end(err)
		case <-p.look.C:
			p.progress()
		}
	}
	n := copy(b, p.buf)
	p.buf = p.buf[n:]
	return n, nil
}

func (p *pulling) progress() {
	if st, loading := p.s.cfg.Gate.ProgressOf(p.model.ID); loading && st.BytesTotal > 0 && st.BytesDone != p.last {
		p.last, p.total = st.BytesDone, st.BytesTotal
		p.buf, p.told = p.form.further(p.buf, p.last, p.total), time.Now()
	} else if time.Since(p.told) >= p.s.cfg.Keepalive {
		p.buf, p.told = p.form.unchanged(p.buf), time.Now()
	}
}

func (p *pulling) end(err error) {
	p.over = true
	switch {
	case errors.Is(err, relay.ErrGone): // the client is gone
	case err != nil:
		p.buf = p.form.failed(p.buf, err)
	default:
		p.buf = p.form.done(p.form.further(p.buf, p.total, p.total))
	}
}

// Close ends the wait; the pull continues.
func (p *pulling) Close() error {
	p.watch.Stop()
	p.look.Stop()
	p.cancel(nil)
	return nil
}
