package state_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"reveille/infra/state"
)

// TestTLS checks that rediss:// uses TLS and verifies the certificate unless told otherwise.
func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	server := miniredis.NewMiniRedis()
	must(t, server.StartTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}))
	t.Cleanup(server.Close)

	open := func(query string) *state.Store {
		s, err := state.Open(state.Options{URL: "rediss://" + server.Addr() + query, Timeout: 10 * time.Second})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	must(t, open("?skip_verify=true").Ping(ctx))
	if err := open("").Ping(ctx); !errors.Is(err, state.ErrUnavailable) {
		t.Fatal("an untrusted certificate was accepted:", err)
	}
}
