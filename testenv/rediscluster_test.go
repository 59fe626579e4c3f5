package testenv

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestRedisClusterSpreadsKeysAndSpeaksTLSAlone(t *testing.T) {
	c := StartRedisCluster(t)
	all := c.Client(t)
	for i := range 100 {
		if err := all.Set(t.Context(), fmt.Sprintf("key-%d", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range c.Addrs {
		if n, err := c.Node(t, i).DBSize(t.Context()).Result(); err != nil || n == 0 {
			t.Errorf("node %d has %d keys, %v", i, n, err)
		}
	}
	for name, config := range map[string]*tls.Config{"without TLS": nil, "without the authority": {ServerName: "localhost"}} {
		stranger := redis.NewClient(&redis.Options{Addr: c.Addrs[0], TLSConfig: config, MaxRetries: -1, DialerRetries: 1})
		if err := stranger.Ping(t.Context()).Err(); err == nil {
			t.Error("answers", name)
		}
		_ = stranger.Close()
	}
	if !strings.HasPrefix(c.EndpointURL(), "rediss://127.0.0.1:") || strings.Count(c.URL(), ",") != clusterNodes-1 {
		t.Error(c.URL(), c.EndpointURL())
	}
}
