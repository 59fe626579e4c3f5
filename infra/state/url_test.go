package state_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
)

func TestParseURL(t *testing.T) {
	tests := []struct {
		url     string
		addrs   []string
		user    string
		pass    string
		db      int
		master  string
		cluster bool
		tls     string // server name, "-" if none
		client  string
	}{
		{url: "redis://localhost", addrs: []string{"localhost:6379"}, tls: "-", client: "single"},
		{url: "redis://:s3cret@10.0.0.1:7000/3", addrs: []string{"10.0.0.1:7000"}, pass: "s3cret", db: 3, tls: "-", client: "single"},
		{url: "redis://u:p%40%2F%2Cx@h:1", addrs: []string{"h:1"}, user: "u", pass: "p@/,x", tls: "-", client: "single"},
		{url: "redis://u:a,b@h:1", addrs: []string{"h:1"}, user: "u", pass: "a,b", tls: "-", client: "single"},
		{url: "redis://[::1]:7000", addrs: []string{"[::1]:7000"}, tls: "-", client: "single"},
		{url: "redis://u:p@a:1,b:2,c", addrs: []string{"a:1", "b:2", "c:6379"}, user: "u", pass: "p", cluster: true, tls: "-", client: "cluster"},
		{url: "redis://a:1,[::1]", addrs: []string{"a:1", "[::1]:6379"}, cluster: true, tls: "-", client: "cluster"},
		{url: "redis://cfg.example:6379?cluster=true", addrs: []string{"cfg.example:6379"}, cluster: true, tls: "-", client: "cluster"},
		{url: "redis://a:1,b:2?master_name=main&db=2", addrs: []string{"a:1", "b:2"}, db: 2, master: "main", tls: "-", client: "sentinel"},
		{url: "redis://a:26379/2?master_name=main", addrs: []string{"a:26379"}, db: 2, master: "main", tls: "-", client: "sentinel"},
		{url: "rediss://h:6380", addrs: []string{"h:6380"}, tls: "h", client: "single"},
		{url: "rediss://a:1,b:2", addrs: []string{"a:1", "b:2"}, cluster: true, tls: "", client: "cluster"},
		{url: "unix:///run/redis.sock?db=1", addrs: []string{"/run/redis.sock"}, db: 1, tls: "-", client: "single"},
		{url: "unix://u:p@/run/redis.sock", addrs: []string{"/run/redis.sock"}, user: "u", pass: "p", tls: "-", client: "single"},
	}
	for _, tt := range tests {
		t.Run(tt.url, func(t *testing.T) {
			o, err := state.ParseURL(tt.url)
			must(t, err)
			if !slices.Equal(o.Addrs, tt.addrs) {
				t.Errorf("addresses: got %v, want %v", o.Addrs, tt.addrs)
			}
			equal(t, "user", o.Username, tt.user)
			equal(t, "password", o.Password, tt.pass)
			equal(t, "db", o.DB, tt.db)
			equal(t, "master", o.MasterName, tt.master)
			equal(t, "cluster", o.IsClusterMode, tt.cluster)
			name := "-"
			if o.TLSConfig != nil {
				name = o.TLSConfig.ServerName
			}
			equal(t, "TLS server name", name, tt.tls)
			c := redis.NewUniversalClient(o)
			defer c.Close()
			kind := "single"
			if _, ok := c.(*redis.ClusterClient); ok {
				kind = "cluster"
			} else if tt.master != "" {
				kind = "sentinel"
			}
			equal(t, "client", kind, tt.client)
		})
	}
}

// The URL's read_timeout bounds a call, unless the program sets its own bound. It must be between 10 ms and 10 s.
func TestReadTimeoutOfURL(t *testing.T) {
	for _, tt := range []struct {
		query string
		own   time.Duration
		want  time.Duration
	}{
		{"", 0, 150 * time.Millisecond},
		{"?read_timeout=9s", 0, 9 * time.Second},
		{"?read_timeout=2", 0, 2 * time.Second},
		{"?read_timeout=9s", time.Minute, time.Minute},
	} {
		o := state.Options{URL: "redis://127.0.0.1:1" + tt.query, Timeout: tt.own}
		s, err := state.Open(o)
		must(t, err)
		defer s.Close()
		before := time.Now()
		must(t, s.Guard(t.Context(), func(ctx context.Context) error {
			if end, _ := ctx.Deadline(); end.Sub(before) < tt.want || time.Until(end) > tt.want {
				t.Errorf("%q, own %v: a call has %v, want %v", tt.query, tt.own, time.Until(end), tt.want)
			}
			return nil
		}))
	}
	for _, bad := range []string{"0", "1ms", "11s", "-1s"} {
		if _, err := state.Open(state.Options{URL: "redis://127.0.0.1:1?read_timeout=" + bad}); err == nil || !strings.Contains(err.Error(), "10ms and 10s") {
			t.Errorf("read_timeout=%s: %v", bad, err)
		}
	}
}

func TestBadURLsKeepTheirPassword(t *testing.T) {
	for _, url := range []string{
		"", "localhost:6379", "http://u:canary@h", "redis://u:canary@h:port", "redis://u:canary@h/notanumber", "redis://u:canary@%zz",
		"redis://u:canary@a:1,/0", "redis://u:canary@a,b/4", "rediss://u:canary@h?read_timeout=canary", "unix://", "redis://u:can\x00ary@h:1",
	} {
		_, err := state.Open(state.Options{URL: url})
		if err == nil {
			t.Errorf("%q was accepted", url)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("the error of %q quotes the password: %v", url, err)
		}
	}
	s, err := state.Open(state.Options{URL: "redis://u:canary@127.0.0.1:1"})
	must(t, err)
	defer s.Close()
	if err := s.Ping(ctx); err == nil || strings.Contains(err.Error(), "canary") {
		t.Error("error of a refused connection:", err)
	}
}

func TestUnixSocket(t *testing.T) {
	sock := t.TempDir() + "/r.sock"
	testenv.StartRedis(t, "--unixsocket", sock)
	s, err := state.Open(state.Options{URL: "unix://" + sock})
	must(t, err)
	defer s.Close()
	register(t, s, "h", nil)
}

func FuzzParseURL(f *testing.F) {
	for _, u := range []string{"redis://h", "rediss://u:p@a:1,b:2/0?cluster=true", "unix:///a?db=1", "redis://[::1]:1,[::2]?master_name=m"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, url string) {
		o, err := state.ParseURL(url)
		if err == nil && (len(o.Addrs) == 0 || o.MaxRetries != -1) {
			t.Fatalf("options of %q: %+v", url, o)
		}
	})
}
