package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificates are a test's own authority and a server's certificate by it, for 127.0.0.1
// and localhost, as PEM files.
type certificates struct {
	authority string // file; what SSL_CERT_FILE names for Go programs
	server    string // file
	key       string // file: the server's private key
	clients   *tls.Config
}

func newCertificates(t testing.TB) certificates {
	t.Helper()
	dir := t.TempDir()
	c := certificates{
		authority: filepath.Join(dir, "authority.pem"), server: filepath.Join(dir, "server.pem"), key: filepath.Join(dir, "key.pem"),
		clients: &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1"},
	}
	until := time.Now().Add(24 * time.Hour)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testenv authority"}, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	// The nodes of a cluster are servers to clients and clients to each other.
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "testenv redis"}, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	leafKey, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal("testenv: certificate:", err)
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, root, leafKey.Public(), rootKey)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(leafKey)
	if err := errors.Join(err, err2, err3,
		writePEM(c.authority, "CERTIFICATE", rootDER), writePEM(c.server, "CERTIFICATE", leafDER), writePEM(c.key, "PRIVATE KEY", keyDER),
	); err != nil {
		t.Fatal("testenv: certificate:", err)
	}
	parsed, err := x509.ParseCertificate(rootDER)
	if err != nil {
		t.Fatal("testenv: certificate:", err)
	}
	c.clients.RootCAs.AddCert(parsed)
	return c
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
