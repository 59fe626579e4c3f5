package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	callLimit = 2 * time.Second // of one call; the service is on the machine's own link
	maxBytes  = 16 << 10        // of a response
)

// Metadata is a client of the instance metadata service, version 2. It is safe for concurrent use. The caller must
// close it.
type Metadata struct {
	client    *imds.Client
	transport *http.Transport
}

// NewMetadata returns a client of the service at an endpoint. An empty endpoint stands for that of
// AWS_EC2_METADATA_SERVICE_ENDPOINT, else for that of every EC2 instance.
func NewMetadata(endpoint string) *Metadata {
	// No proxy, which would report another machine.
	transport := &http.Transport{Proxy: nil, MaxIdleConns: 1, IdleConnTimeout: time.Minute}
	return &Metadata{transport: transport, client: imds.New(imds.Options{
		Endpoint: strings.TrimRight(endpoint, "/"), EnableFallback: aws.FalseTernary, DisableDefaultMaxBackoff: true,
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) { // a second try, because the token may have expired
			o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 2, 100*time.Millisecond, ratelimit.None
		}),
		HTTPClient: &http.Client{
			Timeout: callLimit, Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})}
}

// Close closes idle connections.
func (m *Metadata) Close() { m.transport.CloseIdleConnections() }

// Get returns the value at a path below meta-data/; ok is false if there is none. It takes a few seconds at most.
func (m *Metadata) Get(ctx context.Context, path string) (text string, ok bool, err error) {
	text, err = m.read(ctx, path)
	var status *smithyhttp.ResponseError
	switch {
	case err == nil:
		return text, true, nil
	case errors.As(err, &status) && status.HTTPStatusCode() == http.StatusNotFound:
		return "", false, nil
	}
	return "", false, fmt.Errorf("instance metadata: %s: %w", path, err)
}

func (m *Metadata) read(ctx context.Context, path string) (string, error) {
	out, err := m.client.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	defer out.Content.Close()
	body, err := io.ReadAll(io.LimitReader(out.Content, maxBytes))
	return strings.TrimSpace(string(body)), err
}
