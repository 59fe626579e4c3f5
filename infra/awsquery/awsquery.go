// Package awsquery calls the services of AWS that speak its query protocol, EC2 and Auto Scaling. The SDK finds settings and
// credentials and signs; its clients of these services would take most of a build's time for the eight calls that are made.
package awsquery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Bounds of a call.
const (
	attempts = 2 // the second after a lost connection; callers repeat what was refused
	timeout  = 30 * time.Second
	maxReply = 16 << 20
)

// Client calls a service in the region of Config. Make it with EC2 or AutoScaling.
type Client struct {
	config           aws.Config
	service, version string
}

// EC2 is https://docs.aws.amazon.com/AWSEC2/latest/APIReference.
func EC2(c aws.Config) *Client { return &Client{c, "ec2", "2016-11-15"} }

// AutoScaling is https://docs.aws.amazon.com/autoscaling/ec2/APIReference.
func AutoScaling(c aws.Config) *Client { return &Client{c, "autoscaling", "2011-01-01"} }

// Error is a service's refusal.
type Error struct{ Code, Message string }

// Error returns the code and the message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Call makes one call. It decodes the response into out unless that is nil. Errors are, or wrap, *Error if the service refused.
func (c *Client) Call(ctx context.Context, action string, params url.Values, out any) error {
	form := url.Values{"Action": {action}, "Version": {c.version}}
	for name, values := range params {
		form[name] = values
	}
	for try := 1; ; try++ {
		reply, err := c.post(ctx, form.Encode())
		if err == nil && out != nil {
			err = xml.Unmarshal(reply, out)
		}
		if _, refused := errors.AsType[*Error](err); err == nil || refused || ctx.Err() != nil || try == attempts {
			if err != nil {
				err = fmt.Errorf("%s: %w", action, err)
			}
			return err
		}
	}
}

func (c *Client) post(ctx context.Context, form string) ([]byte, error) {
	if c.config.Region == "" || c.config.Credentials == nil {
		return nil, errors.New("no region or no credentials of AWS are configured")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	credentials, err := c.config.Credentials.Retrieve(ctx)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint(), strings.NewReader(form))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	sum := sha256.Sum256([]byte(form))
	err = v4.NewSigner().SignHTTP(ctx, credentials, req, hex.EncodeToString(sum[:]), c.service, c.config.Region, time.Now())
	if err != nil {
		return nil, err
	}
	var client aws.HTTPClient = http.DefaultClient
	if c.config.HTTPClient != nil { // with the authorities of AWS_CA_BUNDLE
		client = c.config.HTTPClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, refusal(resp.Status, reply)
	}
	return reply, nil
}

// endpoint is the service's address: that of AWS_ENDPOINT_URL, or else AWS's own, with AWS_USE_DUALSTACK_ENDPOINT the
// one that IPv6 reaches too.
func (c *Client) endpoint() string {
	if own := aws.ToString(c.config.BaseEndpoint); own != "" {
		return strings.TrimRight(own, "/") + "/"
	}
	domain, dualStack := "amazonaws.com", "api.aws"
	if strings.HasPrefix(c.config.Region, "cn-") {
		domain, dualStack = "amazonaws.com.cn", "api.amazonwebservices.com.cn"
	}
	if usesDualStack(c.config) {
		domain = dualStack
	}
	return "https://" + c.service + "." + c.config.Region + "." + domain + "/"
}

// usesDualStack reports whether the first of a configuration's sources that says anything about it wants dual-stack
// endpoints.
func usesDualStack(c aws.Config) bool {
	for _, source := range c.ConfigSources {
		s, ok := source.(interface {
			GetUseDualStackEndpoint(context.Context) (aws.DualStackEndpointState, bool, error)
		})
		if !ok {
			continue
		}
		if state, found, _ := s.GetUseDualStackEndpoint(context.Background()); found {
			return state == aws.DualStackEndpointStateEnabled
		}
	}
	return false
}

// refusal reads an error response, which each of the two services writes in its own form.
func refusal(status string, reply []byte) error {
	var of struct {
		EC2     Error `xml:"Errors>Error"`
		Scaling Error `xml:"Error"`
	}
	_ = xml.Unmarshal(reply, &of) // what is no XML has no code
	return &Error{cmp.Or(of.EC2.Code, of.Scaling.Code, "HTTP "+status), cmp.Or(of.EC2.Message, of.Scaling.Message)}
}
