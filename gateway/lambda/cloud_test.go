package lambda

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	emulator "reveille/testenv/aws"
)

func TestCloud(t *testing.T) {
	config := emulator.Start(t, 0).Config()
	c := NewCloud(config)
	if _, err := secretsmanager.NewFromConfig(config).CreateSecret(t.Context(), &secretsmanager.CreateSecretInput{
		Name: aws.String("dev/api-keys"), SecretString: aws.String("k infer\n"),
	}); err != nil {
		t.Fatal(err)
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
