package lambda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// maxDocument is the largest document that is read, in bytes.
const maxDocument = 4 << 20

// Cloud reads small documents that AWS keeps. It is safe for concurrent use.
type Cloud struct{ config aws.Config }

// NewCloud makes a reader with AWS's settings and credentials.
func NewCloud(c aws.Config) *Cloud { return &Cloud{c} }

// Object reads an object of S3.
func (c *Cloud) Object(ctx context.Context, bucket, key string) ([]byte, error) {
	client := s3.NewFromConfig(c.config, func(o *s3.Options) {
		o.UsePathStyle = c.config.BaseEndpoint != nil
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired // stores that have none are not worth a line each time
	})
	out, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return nil, fmt.Errorf("s3://%s/%s: %w", bucket, key, err)
	}
	defer out.Body.Close()
	return readDocument(out.Body)
}

// Secret reads the present value of a secret of Secrets Manager.
func (c *Cloud) Secret(ctx context.Context, id string) ([]byte, error) {
	var out struct{ SecretString *string }
	err := c.call(ctx, "GetSecretValue", map[string]string{"SecretId": id}, &out)
	if err == nil && out.SecretString == nil {
		err = errors.New("it has no text")
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", id, err)
	}
	return []byte(*out.SecretString), nil
}

// call makes one call of Secrets Manager: JSON, signed. It is written out here since the SDK's package for the service is
// a dependency of its own, for one action.
func (c *Cloud) call(ctx context.Context, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint(ctx), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "secretsmanager."+action)
	if c.config.Credentials == nil {
		return errors.New("no AWS credentials")
	}
	credentials, err := c.config.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, credentials, req, hex.EncodeToString(sum[:]), "secretsmanager", c.config.Region, time.Now()); err != nil {
		return err
	}
	client := c.config.HTTPClient
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := readDocument(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var e struct {
			Type    string `json:"__type"`
			Message string
		}
		_ = json.Unmarshal(text, &e) // the status tells enough
		return fmt.Errorf("%s: %s %s", resp.Status, e.Type, e.Message)
	}
	return json.Unmarshal(text, out)
}

// endpoint is Secrets Manager's URL, the emulator's or that of a region.
func (c *Cloud) endpoint(ctx context.Context) string {
	if c.config.BaseEndpoint != nil {
		return *c.config.BaseEndpoint
	}
	suffix, dual := "amazonaws.com", "api.aws"
	if strings.HasPrefix(c.config.Region, "cn-") {
		suffix, dual = "amazonaws.com.cn", "api.amazonwebservices.com.cn"
	}
	if c.dualStack(ctx) {
		suffix = dual
	}
	return "https://secretsmanager." + c.config.Region + "." + suffix
}

// dualStack reports whether endpoints must have IPv6 addresses, by the settings that the SDK's clients obey.
func (c *Cloud) dualStack(ctx context.Context) bool {
	for _, source := range c.config.ConfigSources {
		s, ok := source.(interface {
			GetUseDualStackEndpoint(context.Context) (aws.DualStackEndpointState, bool, error)
		})
		if !ok {
			continue
		}
		if state, found, err := s.GetUseDualStackEndpoint(ctx); found && err == nil {
			return state == aws.DualStackEndpointStateEnabled
		}
	}
	return false
}

func readDocument(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err == nil && len(text) > maxDocument {
		err = fmt.Errorf("larger than %d bytes", maxDocument)
	}
	return text, err
}
