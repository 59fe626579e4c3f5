// Package upstream is the engine of recipe upstream: a process that stands for a model that something else serves, such
// as a cluster's own vLLM or another provider. It turns that on, reports ready when it is healthy, relays requests to
// it with its own key, and turns it off when it is stopped. To a runner it is an engine like any other.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/power"
	"reveille/infra/power/drivers"
	"reveille/infra/recipe"
)

// Bounds.
const (
	healthTimeout = 10 * time.Second
	maxMissed     = 3 // health checks in a row, then it counts as gone
	reportEvery   = 15 * time.Second
	offTimeout    = 25 * time.Second // below the recipe's stop_grace
	maxJSON       = 256 << 20
)

// Settings are the flags of `runner upstream`.
type Settings struct {
	Listen     string `help:"Address to listen on."`
	EngineKey  string `help:"Key that requests to this process must have."`
	Model      string `help:"Name of the model at the server."`
	URL        string `help:"Address of the server, with or without /v1."`
	KeyFile    string `help:"File with the server's API key, read for each request."`
	HealthPath string `help:"Path whose status 200 means that the server is ready. Default: /health, or /v1/models if that is not found."`
	Workload   string `help:"Kubernetes workload to scale from zero to one when the model loads, and to zero when it is unloaded: KIND/NAME."`
	Namespace  string `help:"Namespace of the workload."`
	Wake       string `help:"Command that turns the server on, run without a shell."`
	Sleep      string `help:"Command that turns the server off."`
}

// A server is what serves the model.
type server struct {
	Settings
	root   *url.URL
	client *http.Client
	host   catalog.Host // as the power driver knows it
	driver power.Driver // nil: the server is always on
	log    *log.Logger
	// startPoll and servePoll are the times between health checks until it is ready and from then on.
	startPoll, servePoll time.Duration
}

// Run turns the server on, relays until ctx ends or the server is no longer healthy, and turns it off.
func Run(ctx context.Context, s Settings) error {
	signal.Ignore(syscall.SIGPIPE) // a runner that was killed reads no log
	u, err := newServer(s)
	if err != nil {
		return err
	}
	return u.run(ctx)
}

func (u *server) run(ctx context.Context) error {
	listener, err := net.Listen("tcp", u.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	defer u.client.CloseIdleConnections()
	defer u.turnOff() // also after a wake that was cut short
	if err := u.turnOn(ctx); err != nil {
		return err
	}
	if err := u.awaitHealth(ctx); err != nil {
		return err
	}
	relay := &http.Server{Handler: u.handler(), ReadHeaderTimeout: time.Minute, ErrorLog: u.log}
	failed := make(chan error, 1)
	go func() { failed <- relay.Serve(listener) }()
	defer relay.Close()
	missed := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-time.After(u.servePoll):
		}
		if err := u.health(ctx); err == nil {
			missed = 0
		} else if missed++; missed == maxMissed && ctx.Err() == nil {
			return fmt.Errorf("the upstream server no longer serves: %w", err)
		}
	}
}

func newServer(s Settings) (*server, error) {
	root, err := url.Parse(strings.TrimSuffix(strings.TrimSuffix(s.URL, "/"), "/v1"))
	if err != nil || root.Scheme != "http" && root.Scheme != "https" || root.Host == "" {
		return nil, fmt.Errorf("invalid value of option url: want http://HOST:PORT or https://HOST, got %q", s.URL)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // a compressed stream arrives late
	transport.MaxIdleConnsPerHost = 64
	u := &server{
		Settings: s, root: root, client: &http.Client{Transport: transport}, log: log.New(os.Stderr, "", 0),
		startPoll: time.Second, servePoll: 10 * time.Second,
	}
	u.host = catalog.Host{Name: s.Model, Workload: s.Workload, Namespace: s.Namespace}
	wake, err := recipe.SplitArgs(s.Wake)
	if err != nil {
		return nil, fmt.Errorf("invalid value of option wake: %w", err)
	}
	sleep, err := recipe.SplitArgs(s.Sleep)
	if err != nil {
		return nil, fmt.Errorf("invalid value of option sleep: %w", err)
	}
	switch {
	case s.EngineKey == "":
		return nil, errors.New("REVEILLE_ENGINE_KEY is not set; this program is started by a runner")
	case s.Workload != "" && len(wake)+len(sleep) > 0:
		return nil, errors.New("invalid value of option workload: set either workload, or wake and sleep")
	case s.Workload != "":
		u.driver = drivers.Remote(nil)[catalog.DriverKubernetes]
	case len(wake) > 0 && len(sleep) > 0:
		u.host.Commands = &catalog.Commands{Wake: wake, Sleep: sleep}
		u.driver = drivers.Remote(nil)[catalog.DriverExec]
	case len(wake)+len(sleep) > 0:
		return nil, errors.New("invalid value of option wake: set wake and sleep together")
	}
	return u, nil
}

// turnOn wakes a server that is off. One that is on keeps the number of replicas that its own autoscaler chose.
func (u *server) turnOn(ctx context.Context) error {
	if u.driver == nil {
		return nil
	}
	err := u.repeat(ctx, func() error {
		state, err := u.driver.State(ctx, u.host)
		if err != nil || state == power.On || state == power.Starting {
			return err
		}
		u.log.Print("turning the upstream server on")
		return u.driver.Wake(ctx, u.host)
	})
	if err != nil {
		return fmt.Errorf("the upstream server was not turned on: %w", err)
	}
	return nil
}

// repeat makes a call of the driver until it succeeds, fails for good, or ctx ends.
func (u *server) repeat(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, power.ErrThrottled) && !errors.Is(err, power.ErrInUse) && !errors.Is(err, power.ErrStopping) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(u.startPoll):
		}
	}
}

func (u *server) turnOff() {
	if u.driver == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), offTimeout)
	defer cancel()
	u.log.Print("turning the upstream server off")
	if err := u.repeat(ctx, func() error { return u.driver.Sleep(ctx, u.host) }); err != nil {
		u.log.Printf("the upstream server was not turned off: %v", err)
	}
}

// awaitHealth waits until the server is ready. The recipe's load_timeout bounds the wait.
func (u *server) awaitHealth(ctx context.Context) error {
	began := time.Now()
	for reported := began; ; {
		err := u.health(ctx)
		if err == nil {
			u.log.Printf("the upstream server is ready after %v", time.Since(began).Round(time.Second))
			return nil
		}
		if time.Since(reported) >= reportEvery {
			reported = time.Now()
			u.log.Printf("the upstream server is not ready after %v: %v", time.Since(began).Round(time.Second), err)
		}
		select {
		case <-ctx.Done():
			return errors.New("stopped before the upstream server was ready")
		case <-time.After(u.startPoll):
		}
	}
}

// errNotFound means that the server has no route of this path.
var errNotFound = errors.New("status 404")

func (u *server) health(ctx context.Context) error {
	err := u.checkPath(ctx, cmp.Or(u.HealthPath, "/health"))
	if u.HealthPath == "" && errors.Is(err, errNotFound) {
		err = u.checkPath(ctx, "/v1/models")
	}
	return err
}

func (u *server) checkPath(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.root.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	if err := u.authorize(req.Header); err != nil {
		return err
	}
	resp, err := u.client.Do(req)
	if err != nil {
		return errors.Unwrap(err) // without the address, which errors of clients show
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return errNotFound
	}
	return fmt.Errorf("status %d", resp.StatusCode)
}

// authorize replaces the key of this process by the server's.
func (u *server) authorize(h http.Header) error {
	h.Del("Authorization")
	if u.KeyFile == "" {
		return nil
	}
	key, err := os.ReadFile(u.KeyFile)
	if err != nil {
		return fmt.Errorf("cannot read option key_file: %w", err)
	}
	h.Set("Authorization", "Bearer "+string(bytes.TrimSpace(key)))
	return nil
}

// handler relays requests. Only paths below /v1 reach the server, besides its health.
func (u *server) handler() http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: u.client.Transport, FlushInterval: -1, ErrorLog: u.log,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u.root)
			if err := u.authorize(r.Out.Header); err != nil {
				u.log.Print(err) // the server then refuses the request
			}
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if err := u.health(r.Context()); err != nil {
			http.Error(w, "the upstream server is not ready", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+u.EngineKey)) == 0 {
			http.Error(w, "wrong key", http.StatusUnauthorized)
			return
		}
		if err := u.rename(w, r); err != nil {
			http.Error(w, "the body was not read", http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	})
	return mux
}

// rename puts the server's name of the model into a body of JSON.
func (u *server) rename(w http.ResponseWriter, r *http.Request) error {
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSON))
	if err != nil {
		return err
	}
	if named, err := jsonscan.SetString(body, "model", u.Model); err == nil {
		body = named
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return nil
}
