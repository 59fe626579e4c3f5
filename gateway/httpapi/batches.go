package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/batches"
	"reveille/gateway/keys"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// newBatches returns the service of files and batches; nil if there is no folder for them.
func (s *Server) newBatches() *batches.Service {
	if s.cfg.BatchDir == "" {
		return nil
	}
	return batches.New(batches.Config{
		Dir: s.cfg.BatchDir, MaxBytes: s.cfg.BatchBytes, MaxHeld: max(s.cfg.MaxBufferedBytes/8, maxLineResponse), Tenant: s.tenant,
		Key: s.batchKey, Do: s.runLine, Log: s.log,
		Hours: func(now time.Time) bool { return s.cfg.Catalog().BatchHours.Active(now) },
		Count: func(outcome string) {
			s.set.GetOrCreateCounter(`reveille_gateway_batch_lines_total{outcome="` + outcome + `"}`).Inc()
		},
	})
}

func errNoFolder() *api.Error {
	return api.New(api.NotSupported, "This gateway keeps no files and batches: set --batch-dir.")
}

// batchKey returns the key of a batch, as authorize does for a request.
func (s *Server) batchKey(digest [sha256.Size]byte) keys.Key {
	if s.cfg.Keys.Configured() {
		return s.cfg.Keys.FindDigest(digest)
	}
	return openKey
}

// fileCreate serves POST /files.
func (s *Server) fileCreate(r *request) error {
	if s.batches == nil {
		return errNoFolder()
	}
	body, err := s.bodies.Stream(r.Ctx, maxBody(r.Match.Route))
	if err != nil {
		return r.bodyError(err)
	}
	if err := s.batches.FileCreate(&r.Request, uploadReader{r, body}); err != nil {
		return err
	}
	r.Ctx.Request.ResetBody() // it was read to its end
	return nil
}

// uploadReader maps the errors of an upload to those of clients.
type uploadReader struct {
	r    *request
	body io.Reader
}

// Read implements io.Reader.
func (u uploadReader) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if err != nil && err != io.EOF {
		err = u.r.bodyError(err)
	}
	return n, err
}

// maxLineResponse bounds the response to a line of a batch, in bytes.
const maxLineResponse = 16 << 20

// runLine runs a line of a batch as a request of its key, past the checks that concern connections alone.
func (s *Server) runLine(ctx context.Context, c batches.Call) (out batches.Result) {
	var req fasthttp.Request
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI(c.Path)
	req.Header.SetContentType(api.ContentType)
	if c.Urgent {
		req.Header.Set(rpc.HeaderPriority, "low")
	} else {
		req.Header.Set(rpc.HeaderPriority, "background")
		req.Header.Set(api.HeaderColdWait, "fail")
	}
	var rc fasthttp.RequestCtx
	rc.Init(&req, nil, relay.HTTPLogger{Log: s.log})
	r := s.newRequest(&rc)
	r.Key, r.Account, r.batch, r.memory = c.Key, c.Key.Account, ctx, c.Memory
	held := &heldBuffer{memory: c.Memory}
	out.Request, out.Release = r.ID, held.release
	func() {
		defer r.release()
		err := r.serveLine(c.Body)
		if err != nil {
			r.writeError(err)
			out.Err = api.As(err)
		}
	}()
	if err := rc.Response.BodyWriteTo(held); err != nil {
		e := api.As(lineError(err))
		held.release()
		out.Err, out.Status, out.Body = e, e.Status, r.Match.Dialect.Body(e, r.ID)
		return out
	}
	if out.Status, out.Body = rc.Response.StatusCode(), held.Bytes(); out.Err == nil && out.Status >= fasthttp.StatusInternalServerError {
		out.Err = api.New(api.InternalError, "") // of a panic
	}
	return out
}

// serveLine runs the chain from the body on.
func (r *request) serveLine(body []byte) (err error) {
	var stream [1]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"stream"}, stream[:]); err != nil {
		return api.BadJSON(err)
	}
	if stream[0].Bool() {
		return api.New(api.UnsupportedParameter, "'stream' is not supported in batches.").WithParam("stream")
	}
	if e := r.s.checkMemory(); e != nil {
		return e
	}
	// The batch counts the body, so that people's requests are not refused because of it.
	if r.buffered, err = relay.NewBodyReader(relay.BodyReaderConfig{MaxBody: r.s.cfg.MaxBody}).Put(r.Ctx, body); err != nil {
		return r.bodyError(err)
	}
	return r.route.serve(r.s, r)
}

// lineError is the error of a response that could not be read to its end.
func lineError(err error) error {
	if errors.Is(err, errLongLine) {
		return api.New(api.InvalidRequest, "The response is longer than "+strconv.Itoa(maxLineResponse)+" bytes.")
	}
	return api.New(api.RunnerFailed, "The connection to the model's host was lost before the response was complete.").WithCause(err)
}

var errLongLine = errors.New("the response is too long for a batch")

// heldBuffer holds a response in a line's memory.
type heldBuffer struct {
	bytes.Buffer
	memory memory
	held   int
}

// Write implements io.Writer.
func (b *heldBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxLineResponse {
		return 0, errLongLine
	}
	if err := b.memory.Reserve(len(p)); err != nil {
		return 0, err
	}
	b.held += len(p)
	return b.Buffer.Write(p)
}

func (b *heldBuffer) release() {
	b.memory.Release(b.held)
	b.held = 0
	b.Reset()
}
