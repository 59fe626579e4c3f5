package app

import (
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/testenv"
)

// TestCertificateIsReadAgain: a renewed certificate is used without a restart, and files that cannot be read leave the
// last one in use.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	f := GatewayFlags{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")}
	renew := func() string {
		_, _, fingerprint := testenv.Certificate(t, dir)
		return fingerprint
	}
	listen := func() (net.Listener, error) {
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = plain.Close() })
		return f.listenTLS(plain, slog.New(slog.DiscardHandler))
	}
	if _, err := listen(); err == nil {
		t.Error("files that are missing do not stop the start")
	}
	first := renew()
	ln, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	has := func(fingerprint string) bool {
		conn, err := tls.Dial("tcp", ln.Addr().String(), rpc.Pin(fingerprint))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	if !has(first) {
		t.Error("the certificate is not the file's")
	}
	second := renew()
	for end := time.Now().Add(10 * time.Second); !has(second); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a renewed certificate is not used")
		}
	}
	if err := os.WriteFile(f.TLSKey, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // the files are looked at once a second
	if !has(second) {
		t.Error("a broken file takes the certificate out of use")
	}
	f.TLSKey = ""
	if _, err := listen(); err == nil {
		t.Error("a certificate without a key is accepted")
	}
}
