package app

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/gateway/pressure"
	"reveille/gateway/quota"
	"reveille/gateway/ui"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/trace"
)

// GatewayFlags are the flags of the gateway itself.
type GatewayFlags struct {
	Addr            string        `help:"Address that clients reach the gateway at." default:"127.0.0.1:8080"`
	TLSCert         string        `help:"File with the certificate chain, in PEM, for clients that connect with TLS. It is read again when it changes."`
	TLSKey          string        `help:"File with the key of --tls-cert, in PEM."`
	Models          string        `help:"The models file." default:"models.yaml"`
	APIKeysFile     string        `help:"File of API keys, one a line with its scopes (infer, manage); without any key only loopback addresses are served."`
	AdminKey        string        `help:"One API key with both scopes."`
	localKey        string        // of gateway run without keys
	RunnerSecret    string        `help:"Secret shared by the pool's gateways and runners."`
	Hold            time.Duration `help:"Maximum time that a request waits for a cold model." default:"300s"`
	HoldWhole       time.Duration `help:"Maximum time that a request without stream waits for a cold model, for proxies that time out without data; 0 is as long as --hold."`
	CommitAfter     time.Duration `help:"A stream that still waits after this gets status 200 and a comment; before, errors have their own status." default:"5s"`
	Loading         string        `help:"How a waiting stream of chat completions shows the load of its model: comments, or reasoning (as text of the model's reasoning, which chat clients display)." enum:"comments,reasoning" default:"comments"`
	StreamErrors    string        `help:"How to report errors before a stream starts: status (the error's status), or event (an event with status 200)." enum:"status,event" default:"status"`
	AccessLog       string        `help:"File for a line of JSON for each request, without bodies, queries or keys; - is standard output."`
	Traces          string        `help:"OpenTelemetry collector that gets a trace of each request to a model, by OTLP over HTTP, such as http://127.0.0.1:4318."`
	FreeMetrics     bool          `help:"Serve /metrics without a key."`
	StoreResponses  time.Duration `help:"How long responses of the Responses API stay in Redis, encrypted, so that later requests can continue them (previous_response_id), unless a request says store: false; 0 stores none."`
	BatchDir        string        `help:"Folder of the files and batches of /v1/files and /v1/batches, which all gateways of the pool share; without it there are none."`
	BatchBytes      string        `help:"Maximum size of --batch-dir; uploads beyond it are refused, and batches wait." default:"10GiB"`
	Keepalive       time.Duration `help:"Time between comments on a stream that waits." default:"5s"`
	ShutdownTimeout time.Duration `help:"How long open requests can run after SIGTERM." default:"10m"`
	CORSOrigins     []string      `help:"Origins of web pages that can use the gateway, in addition to localhost and desktop apps: https://chat.example.org, myapp://* for a scheme; * for all, which needs API keys."`
	AllowedHosts    []string      `help:"Host names that the gateway accepts without API keys, in addition to localhost and IP addresses."`
	MaxBody         string        `help:"Maximum size of a request body." default:"64MiB"`
	config.ClientLimits
	MaxConns         int    `help:"Maximum client connections; 0 is no limit." default:"0"`
	MemoryLimit      string `help:"Memory of this process: at 92 % of it connections are not kept, at 95 % new requests are refused with overloaded; 0 is no limit. Default GOMEMLIMIT, else that of its control group."`
	MaxWaiting       int    `help:"Maximum requests that wait for one model; more are refused with queue_full." default:"10000"`
	MaxWaitingPerKey int    `help:"Maximum requests of one API key that wait for models, unless its line says otherwise; more are refused with queue_full; 0 is no limit." default:"5000"`

	// RegisterAllow has a default that depends on the keys: see parse.
	RegisterAllow []string `help:"Allowed sources of the weights of models registered through the API: a folder on the hosts, or a location such as hf://org/*-GGUF or s3://bucket/models; may be repeated. Default hf:// where API keys are configured, else nothing."`
}

// maxStored bounds --store-responses: Redis holds every key's responses that long.
const maxStored = 30 * 24 * time.Hour

// keyed reports whether the operator gave API keys.
func (f GatewayFlags) keyed() bool { return f.APIKeysFile != "" || f.AdminKey != "" }

// parsed are the settings of a gateway, checked.
type parsed struct {
	keys     *keys.Set
	register catalog.RegisterList
	browsers *api.Browsers
	maxBody  int   // bytes
	batches  int64 // maximum bytes of the folder of batches
	limits   config.Limits
	memory   int64 // bytes, 0 no limit

	secret   []byte // of the pool's runners
	sessions *ui.Sessions
	file     *catalog.Catalog
	evict    policy.EvictionPolicy
	tracer   *trace.Tracer // nil: no traces
	ring     *logring.Ring // of the log
}

func (f GatewayFlags) parse() (parsed, error) {
	var p parsed
	var errs []error
	var err error
	if p.keys, err = keys.Open(f.APIKeysFile, f.AdminKey, quota.Limits{Waiting: f.MaxWaitingPerKey}); err != nil {
		errs = append(errs, err)
	} else if err := mayListen(f.Addr, p.keys.Configured()); err != nil {
		errs = append(errs, err)
	}
	if len(f.RegisterAllow) == 0 && p.keys != nil && p.keys.Configured() {
		f.RegisterAllow = []string{string(catalog.SchemeHF) + "://"}
	}
	if p.register, err = catalog.ParseRegisterList(f.RegisterAllow); err != nil {
		errs = append(errs, fmt.Errorf("--register-allow: %w", err))
	}
	keyed := f.keyed()
	if p.keys != nil && !keyed && f.localKey != "" {
		errs = append(errs, p.keys.AddLocal(f.localKey))
	}
	if p.browsers, err = api.NewBrowsers(f.CORSOrigins, f.AllowedHosts, !keyed); err != nil {
		errs = append(errs, fmt.Errorf("--cors-origins, --allowed-hosts: %w", err))
	} else if !keyed && slices.Contains(f.CORSOrigins, "*") {
		errs = append(errs, errors.New("--cors-origins *: without API keys (--api-keys-file or --admin-key) every web page could control the gateway; name the origins instead"))
	}
	maxBody, err := config.Size("max-body", f.MaxBody, math.MaxInt32)
	p.maxBody, errs = int(maxBody), append(errs, err)
	if f.BatchDir != "" {
		p.batches, err = config.Size("batch-bytes", f.BatchBytes, math.MaxInt64)
		errs = append(errs, err)
		if err := os.MkdirAll(f.BatchDir, 0o700); err != nil {
			errs = append(errs, fmt.Errorf("--batch-dir: %w", err))
		}
	}
	if p.limits, err = f.ClientLimits.Parse(); err != nil {
		errs = append(errs, err)
	}
	if p.memory = pressure.Limit(); f.MemoryLimit != "" {
		if p.memory, err = catalog.ParseSize(f.MemoryLimit); err != nil {
			errs = append(errs, fmt.Errorf("--memory-limit: %w", err))
		}
	}
	for _, t := range []struct {
		flag string
		d    time.Duration
	}{{"hold", f.Hold}, {"commit-after", f.CommitAfter}, {"keepalive", f.Keepalive}, {"shutdown-timeout", f.ShutdownTimeout}} {
		if t.d <= 0 {
			errs = append(errs, fmt.Errorf("--%s: must be more than 0", t.flag))
		}
	}
	if f.HoldWhole < 0 {
		errs = append(errs, errors.New("--hold-whole: must not be negative"))
	}
	if f.StoreResponses != 0 && (f.StoreResponses < time.Second || f.StoreResponses > maxStored) {
		errs = append(errs, fmt.Errorf("--store-responses: must be 0, or from 1s to %v", maxStored))
	}
	if f.MaxConns < 0 || f.MaxWaiting < 0 || f.MaxWaitingPerKey < 0 {
		errs = append(errs, errors.New("--max-conns, --max-waiting and --max-waiting-per-key: must not be negative"))
	}
	return p, errors.Join(errs...)
}

// mayListen refuses addresses that others could reach while no key protects the gateway.
func mayListen(addr string, protected bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--addr %q: want host:port", addr)
	}
	if ip := net.ParseIP(host); protected || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--addr %s: without API keys (--api-keys-file or --admin-key) only loopback addresses are served", addr)
}
