package aws

import (
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
)

// PutObject puts an object into a bucket of S3, which is made if it is not there.
func (e *Emulator) PutObject(bucket, key, text string) {
	e.t.Helper()
	client := s3.NewFromConfig(e.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	_, err := client.CreateBucket(e.t.Context(), &s3.CreateBucketInput{Bucket: &bucket}) // again is no error in this region
	if err == nil {
		_, err = client.PutObject(e.t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(text)})
	}
	if err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
}

// PutSecret makes a secret of Secrets Manager.
func (e *Emulator) PutSecret(name, text string) {
	e.t.Helper()
	_, err := secretsmanager.NewFromConfig(e.Config()).CreateSecret(e.t.Context(), &secretsmanager.CreateSecretInput{Name: &name, SecretString: &text})
	if err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
}
