package aws

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
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
	body, _ := json.Marshal(map[string]string{"Name": name, "SecretString": text}) // strings always marshal
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.URL, strings.NewReader(string(body)))
	if err != nil {
		e.t.Fatal("testenv:", err)
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "secretsmanager.CreateSecret")
	// The emulator reads no more of it than the service.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/"+Region+"/secretsmanager/aws4_request, SignedHeaders=host, Signature=none")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		e.t.Fatalf("testenv: AWS emulator: secret %s: %s %s", name, resp.Status, answer)
	}
}
