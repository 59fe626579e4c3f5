// Package hf finds weights in repositories of the Hugging Face hub, or of a mirror that speaks its protocol: a question
// where a file is and what it is, which the hub answers with a redirect to its store; ranged reads of the store; and, for
// whole repositories, a listing.
//
// The token goes to the hub alone, never along a redirect to another origin, and is in no error; nor are the queries of
// URLs, which hold the store's signatures.
package hf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

// defaultEndpoint is the public hub.
const defaultEndpoint = "https://huggingface.co"

// Source is a hub. It is safe for concurrent use.
type Source struct {
	base   *url.URL
	token  string
	client *http.Client
}

var _ weights.Source = (*Source)(nil)

// New makes a source of the hub at endpoint, "" for the public one. token, if not "", is sent to it.
func New(endpoint, token string) (*Source, error) {
	if endpoint == "" {
		endpoint = defaultEndpoint
	}
	base, err := url.Parse(strings.TrimRight(endpoint, "/"))
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, errors.New("want an http or https URL such as " + defaultEndpoint) // it may hold a password: not quoted
	}
	return &Source{base: base, token: token, client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
			Protocols: http1(), // ranges read at a time want connections of their own
		},
	}}, nil
}

func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// Close closes idle connections.
func (s *Source) Close() { s.client.CloseIdleConnections() }

// page is the hub's URL of a file.
func (s *Source) page(at catalog.Checkpoint) *url.URL {
	return s.base.JoinPath(at.Repo, "resolve", url.PathEscape(revision(at)), escaped(at.Path))
}

func revision(at catalog.Checkpoint) string {
	if at.Revision == "" {
		return "main"
	}
	return at.Revision
}

// escaped is a path whose parts are escaped one by one.
func escaped(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// ours reports whether a URL is of the hub itself.
func (s *Source) ours(u *url.URL) bool { return u.Scheme == s.base.Scheme && u.Host == s.base.Host }

// ask makes a request, of a range unless that is "". The token goes with it to the hub only; redirects are answers.
func (s *Source) ask(ctx context.Context, method string, at *url.URL, of string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, at.String(), nil)
	if err != nil {
		return nil, err
	}
	if of != "" {
		req.Header.Set("Range", of)
	}
	req.Header.Set("User-Agent", "reveille")
	req.Header.Set("Accept-Encoding", "identity")
	if s.token != "" && s.ours(req.URL) {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.client.Do(req)
	var wrapped *url.Error
	if errors.As(err, &wrapped) { // it quotes the whole URL
		err = fmt.Errorf("%s %s: %w", req.Method, bare(req.URL), wrapped.Err)
	}
	return resp, err
}

// maxHops bounds the redirects of one request.
const maxHops = 5

// follow is ask that goes along redirects.
func (s *Source) follow(ctx context.Context, method string, at *url.URL, of string) (*http.Response, error) {
	for range maxHops {
		resp, err := s.ask(ctx, method, at, of)
		if err != nil || !redirects(resp) {
			return resp, err
		}
		_ = resp.Body.Close()
		if at, err = s.next(resp); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s %s: more than %d redirects", method, bare(at), maxHops)
}

func redirects(resp *http.Response) bool { return resp.StatusCode >= 300 && resp.StatusCode <= 399 }

// next is where a redirect leads. One away from https is refused.
func (s *Source) next(resp *http.Response) (*url.URL, error) {
	at := resp.Request.URL
	next, err := at.Parse(resp.Header.Get("Location"))
	if err != nil || resp.Header.Get("Location") == "" {
		return nil, fmt.Errorf("%s %s: a redirect to nowhere", resp.Request.Method, bare(at))
	}
	if next.Scheme != "https" && (next.Scheme != "http" || at.Scheme == "https") {
		return nil, &weights.Error{Kind: weights.ErrDenied, Note: "a redirect away from https", Cause: fmt.Errorf("%s %s: to %s", resp.Request.Method, bare(at), bare(next))}
	}
	return next, nil
}

// bare is a URL without what may be secret in it.
func bare(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

// refused is the error of an answer with another status than was wanted.
func refused(resp *http.Response) error {
	status := fmt.Sprintf("status %d", resp.StatusCode)
	if code := resp.Header.Get("X-Error-Code"); code != "" && len(code) <= 64 && !strings.ContainsFunc(code, notWord) {
		status += " " + code
	}
	cause := fmt.Errorf("%s %s: %s", resp.Request.Method, bare(resp.Request.URL), status)
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
	case http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
		e.Kind = weights.ErrChanged
	}
	return e
}

func notWord(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}
