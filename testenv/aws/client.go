package aws

import (
	"io"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// client is the SDK's HTTP client without a race that takes the connection away while a response is read. The SDK
// closes a request's body as soon as the response begins, and from then on the body's WriteTo fails with io.EOF.
// net/http has sent the whole body by then but may still look for its end with WriteTo, takes that for a failed write
// and closes the connection. Elsewhere the SDK repeats the call; clients of an Emulator make one attempt.
type client struct{ *awshttp.BuildableClient }

// Do sends a request whose body has no WriteTo.
func (c client) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.BuildableClient.Do(r)
}
