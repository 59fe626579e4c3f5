package hf

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

// Stat asks the hub for a file.
func (s *Source) Stat(ctx context.Context, at catalog.Checkpoint) (weights.File, error) {
	found, err := s.locate(ctx, s.page(at))
	if err != nil {
		return weights.File{}, err
	}
	f := &remote{source: s, page: s.page(at), told: found, known: true}
	if found.commit != "" { // all reads are of the commit that this answer was about
		at.Revision = found.commit
		f.page = s.page(at)
	}
	return weights.File{Name: path.Base(at.Path), Size: found.size, Digest: digest(found.etag), Open: f.open}, nil
}

// fileInfo is what the hub says about a file.
type fileInfo struct {
	size   int64
	etag   string   // "" none
	commit string   // "" if unknown
	direct *url.URL // where its bytes are
}

// locate asks where a file is. Redirects within the hub, as of a repository that was renamed, are followed; one to another
// origin is the answer.
func (s *Source) locate(ctx context.Context, page *url.URL) (fileInfo, error) {
	at := page
	for range maxHops {
		resp, err := s.ask(ctx, http.MethodHead, at, "")
		if err != nil {
			return fileInfo{}, err
		}
		_ = resp.Body.Close()
		t := fileInfo{size: size(resp), etag: etag(resp), commit: commit(resp.Header.Get("X-Repo-Commit")), direct: at}
		if resp.StatusCode == http.StatusOK {
			return t, sized(t, at)
		}
		if !redirects(resp) {
			return fileInfo{}, refused(resp)
		}
		next, err := s.next(resp)
		if err != nil {
			return fileInfo{}, err
		}
		if s.ours(next) {
			at = next
			continue
		}
		t.direct = next
		if t.size < 0 { // from a mirror; the store knows the size
			if resp, err = s.follow(ctx, http.MethodHead, next, ""); err != nil {
				return fileInfo{}, err
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fileInfo{}, refused(resp)
			}
			t.size = size(resp)
		}
		return t, sized(t, next)
	}
	return fileInfo{}, fmt.Errorf("HEAD %s: more than %d redirects", bare(page), maxHops)
}

func sized(t fileInfo, at *url.URL) error {
	if t.size < 0 {
		return fmt.Errorf("HEAD %s: the answer tells no size", bare(at))
	}
	return nil
}

// size is the file's size by an answer of the hub, -1 if unknown. A redirect's length is that of its own body.
func size(resp *http.Response) int64 {
	if n, err := strconv.ParseInt(resp.Header.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
		return n
	}
	if resp.StatusCode == http.StatusOK {
		return resp.ContentLength
	}
	return -1
}

// etag is the file's checksum by an answer of the hub, "" if unknown. A redirect's ETag is that of its own body.
func etag(resp *http.Response) string {
	v := resp.Header.Get("X-Linked-Etag")
	if v == "" && resp.StatusCode == http.StatusOK {
		v = resp.Header.Get("Etag")
	}
	return strings.ToLower(strings.Trim(strings.TrimPrefix(v, "W/"), `"`))
}

func commit(text string) string {
	if isHex(text, 40) {
		return text
	}
	return ""
}

// digest is what the hub's etag is the checksum of: large files are named by SHA-256, small ones by Git.
func digest(etag string) weights.Digest {
	switch {
	case isHex(etag, 64):
		return weights.Digest{Algorithm: weights.SHA256, Sum: etag}
	case isHex(etag, 40):
		return weights.Digest{Algorithm: weights.GitBlob, Sum: etag}
	}
	return weights.Digest{}
}

func isHex(text string, length int) bool {
	_, err := hex.DecodeString(text)
	return err == nil && len(text) == length
}

// remote is a file of the hub. Where its bytes are is asked once, and again when the store refuses what the hub had
// signed: signatures end.
type remote struct {
	source *Source
	page   *url.URL

	mu    sync.Mutex // guards all below; held while the hub is asked, so that one of many ranges asks
	told  fileInfo
	known bool
}

func (r *remote) open(ctx context.Context, from, n int64) (io.ReadCloser, error) {
	t, err := r.where(ctx, nil)
	if err != nil {
		return nil, err
	}
	body, err := r.source.get(ctx, t, from, n)
	if e, ok := errors.AsType[*weights.Error](err); ok && (e.Kind == weights.ErrDenied || e.Kind == weights.ErrNotFound) && !r.source.ours(t.direct) {
		if t, err = r.where(ctx, t.direct); err != nil {
			return nil, err
		}
		body, err = r.source.get(ctx, t, from, n)
	}
	return body, err
}

// where is where the bytes are now; not at the location that was tried in vain, unless that is so again.
func (r *remote) where(ctx context.Context, vain *url.URL) (fileInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known && r.told.direct != vain {
		return r.told, nil
	}
	t, err := r.source.locate(ctx, r.page)
	if err != nil {
		return fileInfo{}, err
	}
	was, is := digest(r.told.etag), digest(t.etag)
	if r.told.size != t.size || was != is && was != (weights.Digest{}) && is != (weights.Digest{}) {
		return fileInfo{}, &weights.Error{Kind: weights.ErrChanged, Note: path.Base(r.page.Path)}
	}
	r.told, r.known = t, true
	return t, nil
}

// get reads a range of a file.
func (s *Source) get(ctx context.Context, t fileInfo, from, n int64) (io.ReadCloser, error) {
	resp, err := s.follow(ctx, http.MethodGet, t.direct, fmt.Sprintf("bytes=%d-%d", from, from+n-1))
	if err != nil {
		return nil, err
	}
	whole := resp.StatusCode == http.StatusOK && from == 0 && n == t.size
	part := resp.StatusCode == http.StatusPartialContent && resp.Header.Get("Content-Range") == fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, t.size)
	if whole || part {
		return resp.Body, nil
	}
	_ = resp.Body.Close()
	if slices.Contains([]int{http.StatusOK, http.StatusPartialContent}, resp.StatusCode) {
		return nil, &weights.Error{Kind: weights.ErrChanged, Note: "the store does not read ranges of it", Cause: fmt.Errorf("GET %s: status %d, content range %.100q", bare(resp.Request.URL), resp.StatusCode, resp.Header.Get("Content-Range"))}
	}
	return nil, refused(resp)
}
