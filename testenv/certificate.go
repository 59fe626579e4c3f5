package testenv

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"reveille/infra/rpc"
)

// Certificate writes a new certificate and its key into a folder, over those that an earlier call wrote, and returns
// the files and the certificate's fingerprint.
func Certificate(t testing.TB, dir string) (certFile, keyFile, fingerprint string) {
	t.Helper()
	cert, fingerprint, err := rpc.NewCertificate()
	if err != nil {
		t.Fatal("testenv:", err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal("testenv:", err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal("testenv:", err)
		}
	}
	return certFile, keyFile, fingerprint
}
