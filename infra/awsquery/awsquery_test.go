package awsquery

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// A call is signed for its service and region, repeated after a lost connection but not after a refusal, and its response is read in
// the form of either service.
func TestCall(t *testing.T) {
	asked, answers := []string{}, []string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Authorization")+" "+r.PostFormValue("Action")+" "+r.PostFormValue("Version")+" "+r.PostFormValue("A.1"))
		next := answers[0]
		answers = answers[1:]
		switch {
		case next == "":
			panic(http.ErrAbortHandler)
		case strings.Contains(next, "Error") || next == "busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, next)
	}))
	defer srv.Close()
	settings := aws.Config{
		Region: "eu-west-1", BaseEndpoint: &srv.URL, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), HTTPClient: srv.Client(),
	}
	for _, c := range []struct {
		client  *Client
		answers []string
		want    string // the code of the error, or the value of <V>
		asks    int
	}{
		{EC2(settings), []string{"<R><V>1</V></R>"}, "1", 1},
		{AutoScaling(settings), []string{"", "<R><V>2</V></R>"}, "2", 2},
		{EC2(settings), []string{"<Response><Errors><Error><Code>C</Code><Message>M</Message></Error></Errors></Response>"}, "C", 1},
		{AutoScaling(settings), []string{"<ErrorResponse><Error><Code>D</Code><Message>M</Message></Error></ErrorResponse>"}, "D", 1},
		{EC2(settings), []string{"busy"}, "HTTP 503 Service Unavailable", 1},
	} {
		asked, answers = nil, c.answers
		var out struct{ V string }
		err := c.client.Call(t.Context(), "Do", url.Values{"A.1": {"x"}}, &out)
		got := out.V
		if refused, ok := errors.AsType[*Error](err); ok {
			got = refused.Code
		} else if err != nil {
			got = err.Error()
		}
		scope := "/eu-west-1/" + c.client.service + "/aws4_request"
		if got != c.want || len(asked) != c.asks || !strings.Contains(asked[0], scope) || !strings.HasSuffix(asked[0], " Do "+c.client.version+" x") {
			t.Errorf("%q: %q after %q", c.answers, got, asked)
		}
	}
	for variable, wants := range map[string]map[string]string{
		"":     {"us-east-1": "https://ec2.us-east-1.amazonaws.com/", "cn-north-1": "https://ec2.cn-north-1.amazonaws.com.cn/"},
		"true": {"us-east-1": "https://ec2.us-east-1.api.aws/", "cn-north-1": "https://ec2.cn-north-1.api.amazonwebservices.com.cn/"},
	} {
		t.Setenv("AWS_USE_DUALSTACK_ENDPOINT", variable)
		for region, want := range wants {
			own, err := config.LoadDefaultConfig(t.Context(), config.WithRegion(region))
			if got := EC2(own).endpoint(); err != nil || got != want {
				t.Errorf("%s, AWS_USE_DUALSTACK_ENDPOINT=%q: %s, %v", region, variable, got, err)
			}
		}
	}
	if err := EC2(aws.Config{}).Call(t.Context(), "Do", nil, nil); err == nil {
		t.Error("a call without a region")
	}
}
