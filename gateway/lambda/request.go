package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-lambda-go/events"
)

// hop are headers of one connection, by their lower-case names: they say nothing of the message. Lambda and the gateway's
// server have their own.
var hop = map[string]bool{
	"connection": true, "content-length": true, "expect": true, "host": true, "keep-alive": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true,
}

// requestOf is the HTTP request that an event is made of.
func requestOf(ctx context.Context, ev *events.LambdaFunctionURLRequest) (*http.Request, error) {
	body := []byte(ev.Body)
	if ev.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(ev.Body); err != nil {
			return nil, fmt.Errorf("event: body: %w", err)
		}
	}
	u := &url.URL{Scheme: "http", Host: "lambda", Path: ev.RawPath, RawQuery: ev.RawQueryString}
	if plain, err := url.PathUnescape(ev.RawPath); err == nil {
		u.Path, u.RawPath = plain, ev.RawPath // sent as it came, where that is a path
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path, u.RawPath = "/"+u.Path, ""
	}
	req, err := http.NewRequestWithContext(ctx, ev.RequestContext.HTTP.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	for name, value := range ev.Headers {
		switch {
		case strings.EqualFold(name, "host"):
			req.Host = value
		case !hop[strings.ToLower(name)]:
			req.Header.Set(name, value)
		}
	}
	if len(ev.Cookies) > 0 {
		req.Header.Set("Cookie", strings.Join(ev.Cookies, "; "))
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "") // none of the library's own
	}
	return req, nil
}

// preludeOf is the head of an answer, in the form of function URLs; the body is the caller's to set.
func preludeOf(resp *http.Response) *events.LambdaFunctionURLStreamingResponse {
	out := &events.LambdaFunctionURLStreamingResponse{StatusCode: resp.StatusCode, Headers: make(map[string]string, len(resp.Header))}
	for name, values := range resp.Header {
		switch {
		case name == "Set-Cookie":
			out.Cookies = values
		case !hop[strings.ToLower(name)]:
			out.Headers[name] = strings.Join(values, ", ")
		}
	}
	return out
}
