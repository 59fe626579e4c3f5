// Package hf reads weights from repositories of the Hugging Face hub, or of a mirror with the same protocol: ranged
// reads of a file's URL, which redirects to a store, and listings of whole repositories.
//
// The token is sent only to the hub, never to another origin after a redirect. Errors contain neither the token nor the
// queries of URLs, which contain the store's signatures.
package hf

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

const (
	defaultEndpoint = "https://huggingface.co"
	maxRedirects    = 6
	maxPage         = 16 << 20 // bytes of one page of a listing
	// Only larger files of a listing are checked for support of ranges.
	smallFile = 16 << 20
)

// Source is a hub. It is safe for concurrent use.
type Source struct {
	base   *url.URL
	token  string
	client *http.Client
}

var _ weights.Source = (*Source)(nil)

// New returns a source for the hub at endpoint, "" for the public one. token, if not "", is sent to it.
func New(endpoint, token string) (*Source, error) {
	if endpoint == "" {
		endpoint = defaultEndpoint
	}
	base, err := url.Parse(strings.TrimRight(endpoint, "/"))
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" ||
		base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, errors.New("want an http or https URL such as " + defaultEndpoint) // not quoted, because it can contain a password
	}
	s := &Source{base: base, token: token}
	var http1 http.Protocols
	http1.SetHTTP1(true) // parallel ranges need separate connections
	s.client = &http.Client{CheckRedirect: s.checkRedirect, Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
		Protocols: &http1,
	}}
	return s, nil
}

// Close closes idle connections.
func (s *Source) Close() { s.client.CloseIdleConnections() }

func (s *Source) checkRedirect(next *http.Request, before []*http.Request) error {
	if len(before) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	if next.URL.Scheme != "https" && before[0].URL.Scheme == "https" {
		return &weights.Error{Kind: weights.ErrDenied, Note: "redirected from https to http"}
	}
	if !s.isHub(next.URL) { // the client would send the token to other ports and to subdomains
		next.Header.Del("Authorization")
	}
	return nil
}

func (s *Source) isHub(u *url.URL) bool { return u.Scheme == s.base.Scheme && u.Host == s.base.Host }

// fileURL returns the hub's URL of a file.
func (s *Source) fileURL(at catalog.Checkpoint) *url.URL {
	return s.base.JoinPath(at.Repo, "resolve", revision(at), escapePath(at.Path))
}

func revision(at catalog.Checkpoint) string { return url.PathEscape(cmp.Or(at.Revision, "main")) }

func escapePath(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// get requests a URL, or a range of it unless byteRange is "", and follows redirects. If the range is refused (416), it
// requests the whole URL. Responses without success are errors.
func (s *Source) get(ctx context.Context, at *url.URL, byteRange string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	if byteRange != "" {
		req.Header.Set("Range", byteRange)
	}
	req.Header.Set("User-Agent", "reveille")
	req.Header.Set("Accept-Encoding", "identity")
	if s.token != "" && s.isHub(at) {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.client.Do(req)
	var quoting *url.Error
	if errors.As(err, &quoting) { // url.Error quotes the whole URL
		err = fmt.Errorf("GET %s: %w", withoutQuery(req.URL), quoting.Err)
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && byteRange != "" {
		return s.get(ctx, at, "")
	}
	return nil, statusError(resp)
}

// withoutQuery returns a URL without its possibly secret parts.
func withoutQuery(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

var errorCode = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func statusError(resp *http.Response) error {
	status := fmt.Sprintf("status %d", resp.StatusCode)
	if code := resp.Header.Get("X-Error-Code"); errorCode.MatchString(code) {
		status += " " + code
	}
	cause := fmt.Errorf("GET %s: %s", withoutQuery(resp.Request.URL), status)
	e := &weights.Error{Kind: weights.ErrFetch, Note: status, Cause: cause}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		e.Kind, e.Note = weights.ErrDenied, status+"; it needs another token, or does not exist"
		if resp.Request.Header.Get("Authorization") == "" {
			e.Note = status + "; it needs a token (HF_TOKEN), or does not exist"
		}
	case http.StatusForbidden:
		e.Kind = weights.ErrDenied
	case http.StatusNotFound, http.StatusGone:
		e.Kind = weights.ErrNotFound
	case http.StatusPreconditionFailed:
		e.Kind = weights.ErrChanged
	}
	return e
}

// Stat reads a file's first byte, because not every mirror supports HEAD, and because the response shows whether ranges
// can be read.
func (s *Source) Stat(ctx context.Context, at catalog.Checkpoint) (weights.File, error) {
	resp, err := s.get(ctx, s.fileURL(at), "bytes=0-0")
	f := weights.File{Name: path.Base(at.Path)}
	if err != nil {
		return f, err
	}
	_ = resp.Body.Close()
	f.Size, f.NoRanges = resp.ContentLength, true
	if resp.StatusCode == http.StatusPartialContent {
		var from int64
		from, f.Size = contentRange(resp)
		f.NoRanges = from != 0
	}
	etag := resp.Header.Get("Etag")
	for r := resp; r != nil; r = r.Request.Response { // the hub reports more about the file than its store
		if n, err := strconv.ParseInt(r.Header.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
			f.Size = n
		}
		if linked := r.Header.Get("X-Linked-Etag"); linked != "" {
			etag = linked
		}
	}
	f.NoRanges = f.NoRanges || f.Size < 0
	f.Digest = digest(etag)
	return s.withOpen(at, f), nil
}

var rangeRE = regexp.MustCompile(`(?i)^(?:bytes)?[ =]*(?:(\d+)-\d+|\*) */ *(\d+|\*)$`)

// contentRange reads the header Content-Range: bytes 0-9/100, bytes 0-9/* or bytes */0. Either is -1 if it is not
// given.
func contentRange(resp *http.Response) (from, size int64) {
	from, size = -1, -1
	if m := rangeRE.FindStringSubmatch(resp.Header.Get("Content-Range")); m != nil {
		number := func(text string) int64 {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				return n
			}
			return -1
		}
		from, size = number(m[1]), number(m[2])
	}
	return from, size
}

// digest returns the checksum in an ETag: the hub uses SHA-256 for large files and Git's blob hash for small ones.
func digest(etag string) weights.Digest {
	sum := strings.ToLower(strings.Trim(strings.TrimPrefix(etag, "W/"), `"`))
	_, err := hex.DecodeString(sum)
	switch {
	case err == nil && len(sum) == 64:
		return weights.Digest{Algorithm: weights.SHA256, Sum: sum}
	case err == nil && len(sum) == 40:
		return weights.Digest{Algorithm: weights.GitBlob, Sum: sum}
	}
	return weights.Digest{}
}

// withOpen sets how the file is read: each range from the hub's URL, since the store's signed URLs expire.
func (s *Source) withOpen(at catalog.Checkpoint, f weights.File) weights.File {
	f.Open = func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		byteRange := ""
		if !f.NoRanges {
			byteRange = fmt.Sprintf("bytes=%d-%d", from, from+n-1)
		}
		resp, err := s.get(ctx, s.fileURL(at), byteRange)
		if err != nil {
			return nil, err
		}
		start, size := int64(0), resp.ContentLength
		if resp.StatusCode == http.StatusPartialContent {
			start, size = contentRange(resp)
		} else if from > 0 && from < smallFile { // the server does not support ranges after all
			start, err = io.CopyN(io.Discard, resp.Body, from)
		}
		if err != nil {
			_ = resp.Body.Close()
			return nil, fmt.Errorf("GET %s: %w", withoutQuery(resp.Request.URL), err)
		}
		if start != from || size >= 0 && f.Size >= 0 && size != f.Size {
			_ = resp.Body.Close()
			cause := fmt.Errorf("GET %s: status %d, content range %.100q",
				withoutQuery(resp.Request.URL), resp.StatusCode, resp.Header.Get("Content-Range"))
			return nil, &weights.Error{Kind: weights.ErrChanged, Note: path.Base(at.Path), Cause: cause}
		}
		return resp.Body, nil
	}
	return f
}

// node is an entry of a repository's listing.
type node struct {
	Type string `json:"type"`
	Path string `json:"path"`
	OID  string `json:"oid"`
	Size int64  `json:"size"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// List lists the files of a folder, or of the whole repository.
func (s *Source) List(ctx context.Context, at catalog.Checkpoint) ([]weights.File, error) {
	prefix := ""
	if at.Path != "" {
		prefix = at.Path + "/"
	}
	next := s.base.JoinPath("api", "models", at.Repo, "tree", revision(at), escapePath(at.Path))
	next.RawQuery = "recursive=true"
	var out []weights.File
	for pages := 0; next != nil && len(out) <= weights.MaxFiles && pages <= weights.MaxFiles; pages++ {
		nodes, following, err := s.listPage(ctx, next)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			name, inFolder := strings.CutPrefix(n.Path, prefix)
			if n.Type != "file" || !inFolder {
				continue
			}
			file := at
			file.Path = n.Path
			f := weights.File{Size: n.Size, Digest: digest(n.OID)}
			if n.LFS != nil {
				f = weights.File{Size: n.LFS.Size, Digest: digest(n.LFS.OID)}
			}
			if f.Size > smallFile {
				if f, err = s.Stat(ctx, file); err != nil {
					return nil, err
				}
			}
			f.Name = name
			out = append(out, s.withOpen(file, f))
		}
		next = following
	}
	slices.SortFunc(out, func(a, b weights.File) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// listPage reads one page of a listing. It returns the URL of the next page, nil for none.
func (s *Source) listPage(ctx context.Context, at *url.URL) ([]node, *url.URL, error) {
	resp, err := s.get(ctx, at, "")
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	var nodes []node
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&nodes); err != nil {
		return nil, nil, fmt.Errorf("GET %s: %w", withoutQuery(resp.Request.URL), err)
	}
	link := resp.Header.Get("Link") // <URL>; rel="next"
	target, rel, _ := strings.Cut(link, ">")
	if !strings.HasPrefix(target, "<") || !strings.Contains(rel, `rel="next"`) {
		return nodes, nil, nil
	}
	next, err := at.Parse(target[1:])
	if err != nil || !s.isHub(next) {
		return nil, nil, fmt.Errorf("GET %s: the next page is on another host", withoutQuery(resp.Request.URL))
	}
	return nodes, next, nil
}
