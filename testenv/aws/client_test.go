package aws

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go/middleware"
)

// slowConn holds the writer of a request's body until told, although the server has all of it.
type slowConn struct {
	net.Conn
	writes int
	free   <-chan struct{}
}

func (c *slowConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.writes++; c.writes == 2 { // the first is the head
		<-c.free
	}
	return n, err
}

// TestAnswerBeforeTheBodysEnd: the SDK closes a request's body between net/http's last byte of it and its look for more. The
// request has been written all the same.
func TestAnswerBeforeTheBodysEnd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult/></DescribeAutoScalingGroupsResponse>`)
	}))
	t.Cleanup(server.Close)
	free, wrote := make(chan struct{}), make(chan error, 1)
	config := (&Emulator{URL: server.URL}).Config()
	config.HTTPClient = client{config.HTTPClient.(client).WithTransportOptions(func(tr *http.Transport) {
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &slowConn{Conn: conn, free: free}, err
		}
	})}
	closed := middleware.DeserializeMiddlewareFunc("closed", func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
		middleware.DeserializeOutput, middleware.Metadata, error,
	) {
		out, meta, err := next.HandleDeserialize(ctx, in)
		close(free)
		if err := <-wrote; err != nil {
			t.Errorf("the request's body is written with the error %v, for which the connection is closed", err)
		}
		return out, meta, err
	})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) { wrote <- info.Err }})
	_, err := autoscaling.NewFromConfig(config).DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{}, func(o *autoscaling.Options) {
		o.APIOptions = append(o.APIOptions, func(s *middleware.Stack) error { return s.Deserialize.Add(closed, middleware.After) })
	})
	if err != nil {
		t.Error(err)
	}
}
