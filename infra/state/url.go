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

// Bounds of the URL's read_timeout. Leases of 15 s are renewed every 5 s: a renewal that took longer than 10 s would come
// too late.
const minTimeout, maxTimeout = 10 * time.Millisecond, 10 * time.Second

// universalOptions reads the URL. ReadTimeout of the result is the time of one call: Options.Timeout, or else the URL's
// read_timeout, or else 150 ms. The error never holds any of the URL, since it may carry a password.
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
	return &redis.UniversalOptions{
		Addrs: append([]string{ro.Addr}, more...), MasterName: master, DB: ro.DB, Username: ro.Username, Password: ro.Password, TLSConfig: ro.TLSConfig,
		Dialer: dialer(o, ro), IsClusterMode: cluster,
		MaxRetries:    -1, // a lost reply is repeated only by callers with an operation id
		DialerRetries: 1,  // a refused connection is an answer; the breaker paces what comes next
		DialTimeout:   dialTimeout(o, ro), ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		ConnMaxIdleTime:       4 * time.Minute, // networks in between forget connections that are silent for longer, without a word
		ContextTimeoutEnabled: true, PoolSize: 16, DisableIdentity: true,
		// Maintenance notices of managed services are off: the client would resolve its host name when it is made.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}, nil
}

// splitHosts takes all hosts but the first out of a URL: what is left is one that URL parsers know.
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

// Client makes a plain client for keys outside the pool's scripts, such as the encoder cache's, with the bounds of a
// Store's own: no repeats, Options.Timeout a call. The caller closes it.
func Client(o Options) (redis.UniversalClient, error) {
	uo, err := universalOptions(o)
	if err != nil {
		return nil, err
	}
	return newClient(uo), nil
}

// dialTimeout bounds the making of a connection. No call waits for that longer than for its answer; what comes later serves
// the next. A handshake of TLS takes its time where many are made at once.
func dialTimeout(o Options, ro *redis.Options) time.Duration {
	if ro.TLSConfig != nil {
		return max(o.Timeout, 5*time.Second)
	}
	return max(o.Timeout, time.Second)
}

// dialer is set for a Dial of the caller's own and for unix sockets, which the universal client cannot name otherwise.
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
