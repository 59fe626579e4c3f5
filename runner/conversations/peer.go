package conversations

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"reveille/infra/relay"
	"reveille/infra/rpc"
)

const maxName = 128 // bytes of a listed name

// peer is another host's runner.
type peer struct {
	store  *Store
	host   string
	client *relay.Client
}

func (s *peer) perByte() *float64 { return &s.store.hostPerByte }

func (s *peer) list(ctx context.Context, id Identity) (list []Listed, err error) {
	text, err := s.get(ctx, rpc.PathConversations+hex.EncodeToString(id[:]), nil, maxList)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list) > maxListed {
		return nil, fmt.Errorf("%w: list of %d bytes: %w", errFetch, len(text), cmp.Or(err, errForeign))
	}
	for _, c := range list {
		if len(c.Name) == 0 || len(c.Name) > maxName || !plainName(c.Name) {
			return nil, fmt.Errorf("%w: listed as %+v", errFetch, c)
		}
	}
	return list, nil
}

func (s *peer) open(ctx context.Context, id Identity, c Listed) (io.ReadCloser, error) {
	path := rpc.PathConversations + hex.EncodeToString(id[:]) + "/" + c.Name + "?offset="
	return io.NopCloser(&partReader{get: func(offset int64, dst []byte) ([]byte, error) {
		return s.get(ctx, path+strconv.FormatInt(offset, 10), dst, rpc.ConversationsPart)
	}, size: headerSize + int64(c.Bytes)}), nil
}

// get asks the runner, and appends its answer, of limit bytes at most, to dst. Only an answer to this call by a holder
// of the secret counts.
func (s *peer) get(ctx context.Context, path string, dst []byte, limit int) ([]byte, error) {
	for corrected := false; ; corrected = true {
		var call relay.Call
		stop := context.AfterFunc(ctx, func() { call.Cancel(context.Cause(ctx)) })
		auth := s.store.cfg.Pool.Signer.Sign(rpc.Call{Method: "GET", Path: path, Host: s.host})
		req := &relay.Request{Method: "GET", Path: []byte(path), FirstByte: askTimeout, Silence: askTimeout}
		req.Add(rpc.HeaderAuth, []byte(auth))
		resp, err := s.client.Do(&call, req)
		if err != nil {
			stop()
			return nil, err
		}
		body, err := resp.AppendBody(dst, limit)
		status, proof := resp.Status(), string(resp.Header(rpc.HeaderProof))
		clock, bad := strconv.ParseInt(string(resp.Header(rpc.HeaderTime)), 10, 64)
		_ = resp.Close()
		stop()
		switch {
		case err != nil:
			return nil, err
		case status == rpc.StatusRefused && bad == nil && !corrected:
			s.store.cfg.Pool.Signer.Correct(s.host, clock)
			continue
		case status != 200:
			return nil, fmt.Errorf("%w: status %d", errFetch, status)
		case !s.store.cfg.Pool.Signer.Proved(auth, proof, body[len(dst):]):
			return nil, fmt.Errorf("%w: the answer is not signed by the pool's secret", errFetch)
		}
		return body, nil
	}
}

// plainName reports whether a name may be used in a path unescaped.
func plainName(name string) bool {
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

// partReader reads a file of a known size part by part.
type partReader struct {
	get  func(offset int64, dst []byte) ([]byte, error)
	size int64
	at   int64 // offset of the next part
	part bytes.Reader
	buf  []byte
}

// Read implements [io.Reader]. Parts that are not as long as they have to be are an error.
func (r *partReader) Read(p []byte) (int, error) {
	if r.part.Len() == 0 {
		want := min(rpc.ConversationsPart, r.size-r.at)
		if want == 0 {
			return 0, io.EOF
		}
		buf, err := r.get(r.at, r.buf[:0])
		if err != nil {
			return 0, err
		}
		if int64(len(buf)) != want {
			return 0, fmt.Errorf("%w: a part of %d bytes in place of %d", errFetch, len(buf), want)
		}
		r.buf, r.at = buf, r.at+want
		r.part.Reset(buf)
	}
	return r.part.Read(p)
}
