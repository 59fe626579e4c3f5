package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"reveille/infra/config"
	"reveille/infra/rpc"
)

// Remote says which gateway a command talks to.
type Remote struct {
	URL      string        `help:"The gateway. Default: the gateway run with this --state-dir, else http://127.0.0.1:8080."`
	TLSCert  string        `help:"File with the gateway's TLS certificate, in PEM: this certificate is trusted at any address, and no other."`
	APIKey   string        `help:"Key with the scope manage. Without it, REVEILLE_ADMIN_KEY is used, and else, at a loopback address, the admin key of gateway run."`
	StateDir string        `help:"State folder of gateway run, where its admin key is." default:".reveille"`
	Timeout  time.Duration `help:"Timeout for the response." default:"10m"`
	JSON     bool          `help:"Print the gateway's response as JSON."`
}

// AdminKeyFile is the file in the state folder that holds the admin key of a `gateway run` without API keys.
const AdminKeyFile = "admin-key"

// plain follows no redirect: the key is for the gateway alone.
var plain = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// clientFor returns the client for a gateway with the certificate in a file, "" for none of its own.
func clientFor(certFile string) (*http.Client, error) {
	if certFile == "" {
		return plain, nil
	}
	text, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("the gateway's certificate: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("the gateway's certificate: %s does not begin with a certificate in PEM", certFile)
	}
	pinned := *plain
	pinned.Transport = &http.Transport{TLSClientConfig: rpc.Pin(rpc.Fingerprint(block.Bytes)), DisableKeepAlives: true}
	return &pinned, nil
}

// key is the API key for a request to u, "" for none: that of --api-key, of its variable, or the one that the gateway's
// own variable holds, else the admin key in the state folder. The last goes to this machine only: to a loopback address or
// localhost, which no proxy setting applies to.
func (r Remote) key(u *url.URL) string {
	if key := cmp.Or(r.APIKey, os.Getenv(config.EnvPrefix+"ADMIN_KEY")); key != "" {
		return key
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return ""
	}
	data, err := os.ReadFile(filepath.Join(r.StateDir, AdminKeyFile))
	if err != nil {
		return "" // keys are configured, or it runs elsewhere: the gateway says what it needs
	}
	return strings.TrimSpace(string(data))
}

// target is the gateway's URL without a path, and the file with its certificate, "" for none of its own. Both are by
// default those of the state folder. A missing scheme is http, or https with --tls-cert, and a client's base URL that
// ends with /v1 will do.
func (r Remote) target() (u, certFile string) {
	u, certFile = strings.TrimSuffix(strings.TrimRight(r.URL, "/"), "/v1"), r.TLSCert
	if u == "" {
		near, _ := config.ReadRunning(r.StateDir) // one that cannot be read is as none: the error of the call names the address
		u, certFile = cmp.Or(near.URL, "127.0.0.1:8080"), cmp.Or(r.TLSCert, near.Cert)
	}
	switch {
	case strings.Contains(u, "://"):
	case r.TLSCert != "":
		u = "https://" + u
	default:
		u = "http://" + u
	}
	return u, certFile
}

// call makes one request and decodes the response into v. An error response becomes an error with its message.
func (r Remote) call(ctx context.Context, method, path string, body, v any) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	answer, err := r.open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer answer.Close()
	data, err := io.ReadAll(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// show makes one request and decodes the response into v. With --json it prints the response, whatever its form.
func (r Remote) show(ctx context.Context, out io.Writer, method, path string, body, v any) (printed bool, err error) {
	var raw json.RawMessage
	if err := r.call(ctx, method, path, body, &raw); err != nil {
		return false, err
	}
	err = json.Unmarshal(raw, v)
	if r.JSON {
		return true, print(out, raw)
	}
	return false, err
}

// open makes one request and returns the body of the response, for the caller to close. An error response becomes an
// error with its message.
func (r Remote) open(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	base, certFile := r.target()
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return nil, err
	}
	if key := r.key(req.URL); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client, err := clientFor(certFile)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the URL once more
		}
		return nil, fmt.Errorf("no gateway answers at %s: %w", base, err)
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&e) != nil || e.Error.Message == "" {
		return nil, fmt.Errorf("%s %s: status %d", method, path, resp.StatusCode)
	}
	return nil, errors.New(e.Error.Message)
}

// print writes v as indented JSON.
func print(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
