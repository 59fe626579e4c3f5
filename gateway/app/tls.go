package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// A certificate is a pair of files that are read again when they change.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	version string    // of the files that current was read from
	checked time.Time // when they were last looked at
}

// listenTLS has a listener speak TLS if there is a certificate. Files that become unreadable leave the last one in use.
func (f GatewayFlags) listenTLS(ln net.Listener, log *slog.Logger) (net.Listener, error) {
	if f.TLSCert == "" && f.TLSKey == "" {
		return ln, nil
	}
	if f.TLSCert == "" || f.TLSKey == "" {
		return nil, errors.New("--tls-cert and --tls-key go together")
	}
	c := &certificate{certFile: f.TLSCert, keyFile: f.TLSKey, log: log}
	if err := c.read(); err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	return tls.NewListener(ln, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.get}), nil
}

// url is the gateway's URL at an address: localhost for one that listens on all addresses.
func (f GatewayFlags) url(addr string) string {
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("localhost", port)
		}
	}
	if f.TLSCert != "" {
		return "https://" + addr
	}
	return "http://" + addr
}

// get returns the certificate for a connection. It looks at the files at most once a second.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= time.Second {
		if err := c.read(); err != nil {
			c.log.Warn("the TLS certificate was not read again; the last one stays in use", "error", err)
		}
	}
	return c.current, nil
}

// read reads the files if they have changed.
func (c *certificate) read() error {
	c.checked = time.Now()
	version := ""
	for _, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		version += fmt.Sprintln(info.ModTime().UnixNano(), info.Size())
	}
	if version == c.version {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.current, c.version = &pair, version
	return nil
}
