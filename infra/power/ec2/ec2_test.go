package ec2_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power/ec2"
)

// An instance that cannot hibernate is stopped.
func TestHibernation(t *testing.T) {
	for able, want := range map[bool][]string{true: {"StopInstances true"}, false: {"StopInstances true", "StopInstances "}} {
		var calls []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls = append(calls, r.FormValue("Action")+" "+r.FormValue("Hibernate"))
			if !able && r.FormValue("Hibernate") != "" {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, "<Response><Errors><Error><Code>UnsupportedHibernationConfiguration</Code></Error></Errors></Response>")
			}
		}))
		defer srv.Close()
		client := awsquery.EC2(aws.Config{
			Region: "us-east-1", BaseEndpoint: &srv.URL, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), HTTPClient: srv.Client(),
		})
		d := ec2.New(ec2.Config{Client: func(context.Context, string) (*awsquery.Client, error) { return client, nil }})
		err := d.Sleep(t.Context(), catalog.Host{Name: "gpu-1", Instance: "i-0123456789abcdef0", Hibernate: true})
		if err != nil || !slices.Equal(calls, want) {
			t.Errorf("able %v: %q, %v", able, calls, err)
		}
	}
}
