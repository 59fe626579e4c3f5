package relay

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config describes one upstream. A zero field means its default; Addr is required.
type Config struct {
	// Network is "tcp" (default) or "unix".
	Network string
	// Addr is host:port, or the path of the socket.
	Addr string
	// Dial replaces dialing Network and Addr, for example to add TLS. It must return when ctx ends.
	Dial func(ctx context.Context) (net.Conn, error)
	// ConnectTimeout bounds a dial; default 1 s.
	ConnectTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept; default 25 s. Keep it well below the upstream's own
	// timeout: a request that crosses the upstream's close is lost and not sent again.
	IdleTimeout time.Duration
	// WriteTimeout bounds the write of each 4 MiB of a long request; default 30 s. A write may be cut after half of it.
	WriteTimeout time.Duration
	// Single gives each request its own connection and sends Connection: close.
	Single bool
	// MaxIdle bounds the unused connections kept; default 128.
	MaxIdle int
}

// Client speaks HTTP/1.1 to one upstream and reuses connections. It never sends a request twice: it moves a request to
// another connection only if the first one took no byte of it. It is safe for concurrent use.
type Client struct {
	cfg       Config
	bytesRead atomic.Uint64

	mu     sync.Mutex
	idle   []*conn // most recently used last
	active int
	closed bool
	reaper *time.Timer // runs while idle is not empty
}

// New creates a client. It does not dial yet.
func New(cfg Config) *Client {
	cfg.Network = cmp.Or(cfg.Network, "tcp")
	cfg.ConnectTimeout = cmp.Or(max(cfg.ConnectTimeout, 0), time.Second)
	cfg.IdleTimeout = cmp.Or(max(cfg.IdleTimeout, 0), 25*time.Second)
	cfg.WriteTimeout = cmp.Or(max(cfg.WriteTimeout, 0), 30*time.Second)
	cfg.MaxIdle = cmp.Or(max(cfg.MaxIdle, 0), 128)
	if cfg.Dial == nil {
		network, addr := cfg.Network, cfg.Addr
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}
	return &Client{cfg: cfg}
}

// Do sends the request and waits for the head of the response. canceler may be nil if nobody needs it. On success
// the caller must Close the response; on error there is none. Errors are *Error or ErrBadRequest.
func (c *Client) Do(canceler *Canceler, req *Request) (*Response, error) {
	r, err := c.Start(canceler, req)
	if err != nil {
		return nil, err
	}
	if err := r.Await(time.Time{}); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// Fetch makes one exchange, for programs that want the whole response: it sends req, with key as a bearer token unless
// it is empty, and appends the response's body to dst. It fails if the body has more than limit bytes, or once ctx
// ends.
func (c *Client) Fetch(ctx context.Context, req *Request, key string, dst []byte, limit int) (status int, body []byte, err error) {
	var canceler Canceler
	defer context.AfterFunc(ctx, func() { canceler.Cancel(context.Cause(ctx)) })()
	if req.Body != nil {
		req.Add("Content-Type", []byte("application/json"))
	}
	if key != "" {
		req.Add("Authorization", []byte("Bearer "+key))
	}
	resp, err := c.Do(&canceler, req)
	if err != nil {
		return 0, dst, err
	}
	defer resp.Close()
	if n := resp.Size(); n > 0 && n <= limit {
		dst = slices.Grow(dst, n)
	}
	dst, err = resp.AppendBody(dst, limit)
	return resp.Status(), dst, err
}

// Start sends the request and returns without waiting for the response. The caller must then call Await, and finally
// Close.
func (c *Client) Start(canceler *Canceler, req *Request) (*Response, error) {
	buf := getBuffer(false)
	defer putBuffer(buf)
	host := c.cfg.Addr
	if c.cfg.Network == "unix" {
		host = "localhost"
	}
	head, ok := req.appendHead((*buf)[:0], host, c.cfg.Single)
	if !ok {
		return nil, ErrBadRequest
	}
	for {
		cn, reused, err := c.checkout(canceler)
		if err != nil {
			return nil, err
		}
		r := &Response{
			c: cn, client: c, canceler: canceler, reuse: !c.cfg.Single,
			isHead: req.Method == "HEAD", upgrade: req.Upgrade != "", events: req.Events, first: req.FirstByte, silence: req.Silence, probe: req.Probe,
		}
		n, err := cn.write(head, req.Body, c.cfg.WriteTimeout)
		if err == nil {
			r.requestWritten()
			return r, nil
		}
		if n == 0 && reused && canceler.Cause() == nil {
			// The upstream closed the idle connection, and the socket accepted nothing.
			_ = r.Close()
			continue
		}
		if err := r.requestWriteFailed(n, err); err != nil {
			_ = r.Close()
			return nil, err
		}
		return r, nil
	}
}

// checkout takes an idle connection or dials one, and binds canceler to it.
func (c *Client) checkout(canceler *Canceler) (cn *conn, reused bool, err error) {
	if cause := canceler.Cause(); cause != nil {
		return nil, false, &Error{Kind: ErrCanceled, Cause: cause}
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, false, &Error{Kind: ErrClosed}
	}
	c.active++
	for len(c.idle) > 0 {
		cn = c.idle[len(c.idle)-1]
		c.idle[len(c.idle)-1] = nil
		c.idle = c.idle[:len(c.idle)-1]
		c.mu.Unlock()
		if time.Since(cn.idleSince) < c.cfg.IdleTimeout && !cn.isStale() { // the reaper may be late
			break
		}
		_ = cn.nc.Close()
		cn = nil
		c.mu.Lock()
	}
	if reused = cn != nil; !reused {
		c.mu.Unlock()
		if cn, err = c.dial(); err != nil {
			c.release(nil)
			return nil, false, err
		}
	}
	cn.big = false
	if !canceler.bind(cn) {
		c.release(cn)
		return nil, false, &Error{Kind: ErrCanceled, Cause: canceler.Cause()}
	}
	return cn, reused, nil
}

func (c *Client) dial() (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.ConnectTimeout)
	defer cancel()
	nc, err := c.cfg.Dial(ctx)
	if err != nil {
		return nil, &Error{Kind: ErrUnreachable, Cause: err}
	}
	return newConn(nc), nil
}

// release ends an exchange and keeps cn for the next one; cn is nil if there is nothing to keep.
func (c *Client) release(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	if cn == nil {
		return
	}
	if c.closed || len(c.idle) >= c.cfg.MaxIdle {
		_ = cn.nc.Close()
		return
	}
	cn.idleSince = time.Now()
	c.idle = append(c.idle, cn)
	if c.reaper == nil {
		c.reaper = time.AfterFunc(c.cfg.IdleTimeout, c.reap)
	} else if len(c.idle) == 1 {
		c.reaper.Reset(c.cfg.IdleTimeout)
	}
}

// reap closes connections that were idle too long, and reschedules itself while some are left.
func (c *Client) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	n := 0
	for n < len(c.idle) && now.Sub(c.idle[n].idleSince) >= c.cfg.IdleTimeout {
		_ = c.idle[n].nc.Close()
		n++
	}
	kept := copy(c.idle, c.idle[n:])
	clear(c.idle[kept:])
	c.idle = c.idle[:kept]
	if kept > 0 {
		c.reaper.Reset(max(c.idle[0].idleSince.Add(c.cfg.IdleTimeout).Sub(now), time.Millisecond))
	}
}

// Stats counts a client's connections.
type Stats struct {
	// Active is the number of exchanges in progress, Idle the number of unused connections.
	Active, Idle int
}

// Stats returns the current counts.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{Active: c.active, Idle: len(c.idle)}
}

// BytesRead grows whenever bytes of a response, other than a probe's, arrive on any connection. While it stands still,
// the upstream sends nothing to any client.
func (c *Client) BytesRead() uint64 { return c.bytesRead.Load() }

// Close closes the idle connections and makes new exchanges fail with ErrClosed. Exchanges in progress continue.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, cn := range c.idle {
		_ = cn.nc.Close()
	}
	c.idle = nil
	if c.reaper != nil {
		c.reaper.Stop()
	}
}
