package relay

import (
	"io"
	"time"

	"github.com/valyala/fasthttp"
)

// uploadPiece is the most of a body that is read before it is sent on. Smaller pieces cost more calls than the processor's cache saves.
const uploadPiece = 512 << 10

// Upload is a request's body that is sent on while it arrives, see [Request.Upload]. It holds a buffer of fixed size, however long
// the body is, so nothing can be sent twice.
type Upload struct {
	in      *Intake
	ctx     *fasthttp.RequestCtx
	src     io.Reader
	size, n int
	buf     *[]byte
	pace    pace
}

// Upload begins to read the request's body, which has a Content-Length above 0. The caller must Drop it, at the latest when the
// request ends. Errors are those of Read.
func (in *Intake) Upload(ctx *fasthttp.RequestCtx) (*Upload, error) {
	u := &Upload{in: in, ctx: ctx, src: ctx.RequestBodyStream(), size: ctx.Request.Header.ContentLength()}
	if u.size > in.bound(0) {
		return nil, ErrBodyTooLarge
	}
	if err := in.hold(uploadPiece); err != nil {
		return nil, err
	}
	u.buf = takeBody(uploadPiece)
	return u, nil
}

// Size returns the length of the body in bytes.
func (u *Upload) Size() int { return u.size }

// next returns the bytes that follow those of the last call, which it overwrites, or io.EOF after the last ones. Other errors are
// those of Read.
func (u *Upload) next() ([]byte, error) {
	if u.n == u.size {
		return nil, io.EOF
	}
	room := min(len(*u.buf), u.size-u.n)
	n, err := u.in.read(&u.pace, u.ctx, u.src, (*u.buf)[:room], u.n, u.size)
	if u.n += n; n > 0 {
		return (*u.buf)[:n], nil
	}
	if err == nil || err == io.EOF {
		err = ErrBodyBroken
	}
	return nil, err
}

// Drop returns the buffer. The connection of a body that was not read to its end closes after the answer. Drop may be called twice.
func (u *Upload) Drop() {
	if u == nil || u.buf == nil {
		return
	}
	if u.n == u.size {
		u.ctx.Request.ResetBody()
	} else {
		cut(u.ctx)
	}
	u.in.buffered.Add(-uploadPiece)
	giveBody(u.buf)
	u.buf = nil
}

// upload sends the rest of a body, of which a first piece was sent. If it does not arrive, call is cancelled with the reason.
func (c *conn) upload(call *Call, u *Upload, timeout time.Duration) (n int64, err error) {
	for {
		piece, err := u.next()
		if err == io.EOF {
			return n, nil
		} else if err != nil {
			call.Cancel(err)
			return n, err
		}
		if err := c.armWrite(timeout); err != nil {
			return n, err
		}
		m, err := c.nc.Write(piece)
		if n += int64(m); err != nil {
			return n, err
		}
	}
}
