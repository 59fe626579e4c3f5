package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultEndpoint is where every EC2 instance finds its metadata service.
	DefaultEndpoint = "http://169.254.169.254"

	callLimit = 2 * time.Second  // of one call; the service is on the machine's own link
	tokenTTL  = time.Hour        // asked for
	tokenSpan = 50 * time.Minute // used for
	mostBytes = 16 << 10         // of an answer
)

// Metadata is the instance metadata service, version 2. It is safe for concurrent use. Close it.
type Metadata struct {
	base   string
	client *http.Client

	mu    sync.Mutex
	token string
	since time.Time // when the token was given
}

// NewMetadata makes a client of the service at an endpoint, "" for the default one.
func NewMetadata(endpoint string) *Metadata {
	if endpoint == "" {
		endpoint = DefaultEndpoint
	}
	return &Metadata{
		base: strings.TrimRight(endpoint, "/") + "/latest/",
		client: &http.Client{
			Timeout: callLimit, Transport: &http.Transport{Proxy: nil, MaxIdleConns: 1, IdleConnTimeout: time.Minute}, // never by a proxy: it would be another machine's
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close ends the connections that are kept.
func (m *Metadata) Close() { m.client.CloseIdleConnections() }

// Get reads what is at a path below meta-data/; there is false where nothing is. It takes a few seconds at most.
func (m *Metadata) Get(ctx context.Context, path string) (text string, there bool, err error) {
	for fresh := false; ; fresh = true {
		token, err := m.tokenFor(ctx, fresh)
		if err != nil {
			return "", false, fmt.Errorf("instance metadata: token: %w", err)
		}
		text, status, err := m.call(ctx, http.MethodGet, "meta-data/"+path, "X-aws-ec2-metadata-token", token)
		switch {
		case err != nil:
			return "", false, fmt.Errorf("instance metadata: %s: %w", path, err)
		case status == http.StatusOK:
			return text, true, nil
		case status == http.StatusNotFound:
			return "", false, nil
		case status == http.StatusUnauthorized && !fresh: // the token ran out, or the machine was moved
		default:
			return "", false, fmt.Errorf("instance metadata: %s: status %d", path, status)
		}
	}
}

// tokenFor is the token to show; a fresh one if asked for, or if the one at hand is old.
func (m *Metadata) tokenFor(ctx context.Context, fresh bool) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !fresh && m.token != "" && time.Since(m.since) < tokenSpan {
		return m.token, nil
	}
	asked := time.Now()
	token, status, err := m.call(ctx, http.MethodPut, "api/token", "X-aws-ec2-metadata-token-ttl-seconds", strconv.Itoa(int(tokenTTL.Seconds())))
	if err == nil && (status != http.StatusOK || token == "") {
		err = errors.New("status " + strconv.Itoa(status))
	}
	if err != nil {
		return "", err
	}
	m.token, m.since = token, asked
	return token, nil
}

func (m *Metadata) call(ctx context.Context, method, path, header, value string) (text string, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, m.base+path, nil)
	if err != nil {
		return "", 0, err
	}
	req.Header.Set(header, value)
	resp, err := m.client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostBytes))
	return strings.TrimSpace(string(body)), resp.StatusCode, err
}
