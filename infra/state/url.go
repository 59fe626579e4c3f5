package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

var errURL = errors.New("redis URL: want redis://[user:password@]host:port[,host:port…][/db], rediss://… or unix://[user:password@]/path[?db=n]; " +
	"?cluster=true for a Cluster, ?master_name=… for a Sentinel")

const defaultPort = "6379"

// Bounds of the URL's read_timeout. Leases of 15 s are renewed every 5 s, so a renewal that took longer than 10 s would
// be too late.
const minTimeout, maxTimeout = 10 * time.Millisecond, 10 * time.Second

// universalOptions parses the URL. The result's ReadTimeout bounds one call: Options.Timeout, or else the URL's
// read_timeout, or else 150 ms. Errors never quote the URL, which may contain a password.
func universalOptions(o Options) (*redis.UniversalOptions, error) {
	single, more, err := splitHosts(o.URL)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(single)
	if err != nil {
		return nil, errURL
	}
	q := u.Query()
	master, cluster := q.Get("master_name"), q.Get("cluster") == "true"
	q.Del("master_name")
	q.Del("cluster")
	u.RawQuery = q.Encode()
	ro, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, errURL
	}
	if o.Timeout <= 0 {
		if o.Timeout = cmp.Or(ro.ReadTimeout, defaultTimeout); o.Timeout < minTimeout || o.Timeout > maxTimeout {
			return nil, fmt.Errorf("redis URL: read_timeout must be between %v and %v", minTimeout, maxTimeout)
		}
	}
	cluster = cluster || (len(more) > 0 && master == "")
	if cluster && ro.DB != 0 {
		return nil, errors.New("redis URL: a Cluster has database 0 only")
	}
	if ro.TLSConfig != nil && (cluster || master != "") {
		ro.TLSConfig.ServerName = "" // each node's certificate is checked against its own address
	}
	uo := &redis.UniversalOptions{
		Addrs: append([]string{ro.Addr}, more...), MasterName: master, DB: ro.DB, Username: ro.Username, Password: ro.Password, TLSConfig: ro.TLSConfig,
		Dialer: dialer(o, ro), IsClusterMode: cluster,
		MaxRetries:    -1, // only callers with an operation id may repeat after a lost reply
		DialerRetries: 1,  // a refused connection is a response; the breaker paces later attempts
		DialTimeout:   dialTimeout(o, ro), ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		ConnMaxIdleTime:       4 * time.Minute, // networks on the path silently drop connections that are idle for longer
		ContextTimeoutEnabled: true, PoolSize: 16, DisableIdentity: true,
		// Maintenance notices of managed services are off, since the client would resolve its host name at creation.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.Credentials != nil {
		uo.CredentialsProviderContext = o.Credentials.current
	}
	return uo, nil
}

// splitHosts removes all hosts but the first from a URL, so that URL parsers accept the rest.
func splitHosts(raw string) (single string, more []string, err error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "", nil, errURL
	}
	if scheme == "unix" {
		return raw, nil, nil
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user, hosts := "", authority
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	list := strings.Split(hosts, ",")
	for _, h := range list[1:] {
		if h == "" {
			return "", nil, errURL
		}
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), defaultPort)
		}
		more = append(more, h)
	}
	return scheme + "://" + user + list[0] + tail, more, nil
}

// Client returns a plain client for keys outside the pool's scripts, such as the encoder cache's. It has a Store's
// bounds: no repeats, and Options.Timeout per call. The caller closes it.
func Client(o Options) (redis.UniversalClient, error) {
	uo, err := universalOptions(o)
	if err != nil {
		return nil, err
	}
	return newClient(uo), nil
}

// dialTimeout bounds making a connection. A call waits for a connection no longer than for its response; a connection
// that comes later serves the next call. TLS handshakes take long when there are many at the same time.
func dialTimeout(o Options, ro *redis.Options) time.Duration {
	if ro.TLSConfig != nil {
		return max(o.Timeout, 5*time.Second)
	}
	return max(o.Timeout, time.Second)
}

// dialer returns the caller's own Dial, or one for unix sockets, which the universal client cannot name otherwise.
func dialer(o Options, ro *redis.Options) func(context.Context, string, string) (net.Conn, error) {
	if o.Dial != nil {
		return func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) }
	}
	if ro.Network != "unix" {
		return nil
	}
	var d net.Dialer
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", ro.Addr) }
}
