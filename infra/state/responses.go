package state

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/redis/go-redis/v9"
)

// Limits of stored responses.
const (
	MaxResponse      = 8 << 20  // bytes of one, before it is compressed
	maxTenantBytes   = 64 << 20 // bytes of a tenant's in Redis
	maxTenantEntries = 1000     // responses of a tenant

	responseTimeout     = 5 * time.Second // of one call, which may move MaxResponse bytes
	responseConnections = 4
)

// ErrTooLarge means that a response has more than MaxResponse bytes.
var ErrTooLarge = errors.New("the response is too large to be stored")

// PutResponse stores a response under the name of its tenant and its own id, which have no white space and no colon. It
// is removed after keep, which must be at least a millisecond, or earlier to make room for newer ones of the tenant.
// ErrTooLarge: the value has more than MaxResponse bytes.
func (s *Store) PutResponse(ctx context.Context, tenant, id string, value []byte, keep time.Duration) error {
	if len(value) > MaxResponse {
		return ErrTooLarge
	}
	sealed := s.sealer.seal(value, tenant, id)
	return s.guardFor(ctx, responseTimeout, func(ctx context.Context) error {
		_, err := s.run(ctx, s.responses, "response_put", tenant, id, sealed, keep.Milliseconds(), maxTenantBytes, maxTenantEntries)
		return err
	})
}

// Response returns a stored response, or nil if the tenant has none with that id that this pool has stored.
func (s *Store) Response(ctx context.Context, tenant, id string) ([]byte, error) {
	var sealed []byte
	err := s.guardFor(ctx, responseTimeout, func(ctx context.Context) (err error) {
		sealed, err = s.responses.Get(ctx, s.keys.response(tenant, id)).Bytes()
		return err
	})
	if err != nil {
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return nil, err
	}
	return s.sealer.open(sealed, tenant, id), nil
}

// DropResponse removes a stored response, if there is one.
func (s *Store) DropResponse(ctx context.Context, tenant, id string) error {
	return s.guard(ctx, func(ctx context.Context) error { return s.rdb.Del(ctx, s.keys.response(tenant, id)).Err() })
}

// sealer encrypts responses with AES-256-GCM under a key that is derived from the runner secret and authenticates the
// pool, the tenant and the id with them. It is safe for concurrent use.
type sealer struct {
	pool  string
	aead  cipher.AEAD
	pack  *zstd.Encoder
	plain *zstd.Decoder
}

func newSealer(secret []byte, pool string) (*sealer, error) {
	s := &sealer{pool: pool}
	var err error
	if s.aead, err = NewCipher(secret, "reveille responses v1"); err != nil {
		return nil, err
	}
	if s.pack, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithEncoderCRC(false)); err != nil {
		return nil, err
	}
	s.plain, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxResponse))
	return s, err
}

// NewCipher returns AES-256-GCM under a key that is derived from the runner secret and a label, one for each use.
func NewCipher(secret []byte, label string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, label, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func (s *sealer) seal(value []byte, tenant, id string) []byte {
	return s.aead.Seal(nil, nil, s.pack.EncodeAll(value, nil), s.label(tenant, id))
}

// open returns nil for what seal has not made for this tenant and id.
func (s *sealer) open(sealed []byte, tenant, id string) []byte {
	packed, err := s.aead.Open(nil, nil, sealed, s.label(tenant, id))
	if err != nil {
		return nil
	}
	value, err := s.plain.DecodeAll(packed, nil)
	if err != nil {
		return nil
	}
	return value
}

// label is what a seal authenticates besides the value: each part with its length.
func (s *sealer) label(tenant, id string) (label []byte) {
	for _, part := range [...]string{s.pool, tenant, id} {
		label = append(binary.BigEndian.AppendUint64(label, uint64(len(part))), part...)
	}
	return label
}
