package aws

import (
	"encoding/json"
	"fmt"
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
	if _, err := e.secrets("CreateSecret", map[string]string{"Name": name, "SecretString": text}); err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
}

// Secret is the text of a secret. It may be called from any goroutine.
func (e *Emulator) Secret(name string) (string, error) {
	answer, err := e.secrets("GetSecretValue", map[string]string{"SecretId": name})
	return answer["SecretString"], err
}

// secrets calls an action of Secrets Manager and returns the texts of its answer.
func (e *Emulator) secrets(action string, args map[string]string) (map[string]string, error) {
	body, _ := json.Marshal(args) // strings always marshal
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.URL, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "secretsmanager."+action)
	// The emulator reads no more of it than the service.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/"+Region+"/secretsmanager/aws4_request, SignedHeaders=host, Signature=none")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s %s", action, resp.Status, answer)
	}
	var fields map[string]any
	if err := json.Unmarshal(answer, &fields); err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for k, v := range fields {
		if text, ok := v.(string); ok {
			texts[k] = text
		}
	}
	return texts, nil
}
