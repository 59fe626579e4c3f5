package rpc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"math/big"
	"time"
)

// NewCertificate makes a runner's own certificate. No authority signs it: gateways compare its fingerprint with the one
// that the runner has registered.
func NewCertificate() (cert tls.Certificate, fingerprint string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return cert, "", err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, Fingerprint(der), nil
}

// Fingerprint is the SHA-256 of a certificate's DER form, in hex.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// errStranger means that whatever answers at a server's address has another certificate.
var errStranger = errors.New("the server's certificate is not the expected one")

// Pin returns a client's configuration that accepts exactly the certificate with a fingerprint, whatever name and
// authority it has.
func Pin(fingerprint string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection is stricter
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || Fingerprint(s.PeerCertificates[0].Raw) != fingerprint {
				return errStranger
			}
			return nil
		},
	}
}
