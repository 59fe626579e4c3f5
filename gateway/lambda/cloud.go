package lambda

import (
	"context"
	"fmt"
	"io"

	"reveille/infra/awssecret"

	"github.com/aws/aws-sdk-go-v2/aws"
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
	return awssecret.Read(ctx, c.config, id)
}

func readDocument(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err == nil && len(text) > maxDocument {
		err = fmt.Errorf("larger than %d bytes", maxDocument)
	}
	return text, err
}
