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
	maxBytes  = 16 << 10        // of an answer
)

// Metadata is the instance metadata service, version 2. It is safe for concurrent use. Close it.
type Metadata struct {
	client    *imds.Client
	transport *http.Transport
}

// NewMetadata makes a client of the service at an endpoint, "" for the one that AWS_EC2_METADATA_SERVICE_ENDPOINT names or
// every EC2 instance has.
func NewMetadata(endpoint string) *Metadata {
	// Never by a proxy: it would tell of another machine.
	transport := &http.Transport{Proxy: nil, MaxIdleConns: 1, IdleConnTimeout: time.Minute}
	return &Metadata{transport: transport, client: imds.New(imds.Options{
		Endpoint: strings.TrimRight(endpoint, "/"), EnableFallback: aws.FalseTernary, DisableDefaultMaxBackoff: true,
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) { // a second try: the first one's token may have run out
			o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 2, 100*time.Millisecond, ratelimit.None
		}),
		HTTPClient: &http.Client{
			Timeout: callLimit, Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})}
}

// Close ends the connections that are kept.
func (m *Metadata) Close() { m.transport.CloseIdleConnections() }

// Get reads what is at a path below meta-data/; there is false where nothing is. It takes a few seconds at most.
func (m *Metadata) Get(ctx context.Context, path string) (text string, there bool, err error) {
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
