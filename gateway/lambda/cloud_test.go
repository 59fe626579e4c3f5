package lambda

import (
	"context"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	emulator "reveille/testenv/aws"
)

func TestCloud(t *testing.T) {
	config := emulator.Start(t, 0).Config()
	c := NewCloud(config)
	var made struct{ ARN string }
	if err := c.call(t.Context(), "CreateSecret", map[string]string{"Name": "dev/api-keys", "SecretString": "k infer\n"}, &made); err != nil || made.ARN == "" {
		t.Fatal(made, err)
	}
	if got, err := c.Secret(t.Context(), "dev/api-keys"); string(got) != "k infer\n" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if _, err := c.Secret(t.Context(), "dev/none"); err == nil || !strings.HasPrefix(err.Error(), "secret dev/none: ") || !strings.Contains(err.Error(), "ResourceNotFoundException") {
		t.Error(err)
	}
	client := s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true })
	bucket, key := "models", "config/models.yaml"
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{"models: {}\n": true, strings.Repeat("x", maxDocument+1): false} {
		if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(text)}); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Object(t.Context(), bucket, key); (err == nil) != ok || ok && string(got) != text {
			t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
		}
	}
	if _, err := c.Object(t.Context(), bucket, "none"); err == nil || !strings.Contains(err.Error(), "s3://models/none") {
		t.Error(err)
	}
	config.Credentials = nil
	if _, err := NewCloud(config).Secret(t.Context(), "dev/api-keys"); err == nil {
		t.Error("no credentials are needed")
	}
}

// dual is a source of settings, as the SDK keeps them.
type dual aws.DualStackEndpointState

func (d dual) GetUseDualStackEndpoint(context.Context) (aws.DualStackEndpointState, bool, error) {
	return aws.DualStackEndpointState(d), d != 0, nil
}

func TestEndpoint(t *testing.T) {
	for want, c := range map[string]aws.Config{
		"https://secretsmanager.us-east-1.amazonaws.com":                 {Region: "us-east-1", ConfigSources: []any{1, dual(0), dual(aws.DualStackEndpointStateDisabled)}},
		"https://secretsmanager.eu-west-1.api.aws":                       {Region: "eu-west-1", ConfigSources: []any{dual(aws.DualStackEndpointStateEnabled)}},
		"https://secretsmanager.cn-north-1.amazonaws.com.cn":             {Region: "cn-north-1"},
		"https://secretsmanager.cn-north-1.api.amazonwebservices.com.cn": {Region: "cn-north-1", ConfigSources: []any{dual(aws.DualStackEndpointStateEnabled)}},
		"http://127.0.0.1:1": {Region: "us-east-1", BaseEndpoint: aws.String("http://127.0.0.1:1")},
	} {
		if got := NewCloud(c).endpoint(t.Context()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
