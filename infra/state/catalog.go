package state

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

// ErrUnsigned: the catalog in Redis was not published with this pool's runner secret.
var ErrUnsigned = errors.New("the catalog in Redis is not signed with this pool's runner secret")

// catalogMAC is the one signature in Redis. Hosts in the catalog have commands that turn them on and off, and a command
// line never comes from whoever can write Redis.
func (s *Store) catalogMAC(version, catalog string) string {
	m := hmac.New(sha256.New, s.secret)
	for _, part := range []string{"reveille catalogue", s.keys.prefix, version, catalog} {
		m.Write([]byte(part))
		m.Write([]byte{0})
	}
	return hex.EncodeToString(m.Sum(nil))
}

// PutCatalog publishes the catalog. wakeable maps each host that has a driver to the driver's name. It reports
// whether Redis had another one.
func (s *Store) PutCatalog(ctx context.Context, version string, catalog []byte, wakeable map[string]string) (bool, error) {
	args := make([]any, 0, 3+2*len(wakeable))
	args = append(args, version, catalog, s.catalogMAC(version, string(catalog)))
	for h, d := range wakeable {
		args = append(args, h, d)
	}
	out, err := s.eval(ctx, "catalog_put", args...)
	return out == int64(1), err
}

// Catalog reads the published catalog; version is "" if there is none.
func (s *Store) Catalog(ctx context.Context) (version string, catalog []byte, err error) {
	record, err := s.hash(ctx, s.keys.prefix+"catalog")
	if err != nil || record["version"] == "" {
		return "", nil, err
	}
	version = record["version"]
	if !s.unverified && !hmac.Equal([]byte(record["mac"]), []byte(s.catalogMAC(version, record["json"]))) {
		return "", nil, ErrUnsigned
	}
	return version, []byte(record["json"]), nil
}
