package weights

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
)

// An Algorithm makes a checksum of a file's bytes.
type Algorithm string

// The algorithms that sources use.
const (
	SHA256    Algorithm = "sha256"
	SHA1      Algorithm = "sha1"
	MD5       Algorithm = "md5"
	CRC64NVME Algorithm = "crc64nvme"
	CRC32C    Algorithm = "crc32c"
	CRC32     Algorithm = "crc32"
	GitBlob   Algorithm = "git-sha1" // SHA-1 of the bytes behind Git's header of a blob
)

// nvme is the polynomial of CRC-64/NVME, reflected.
const nvme = 0x9a6c9329ac4bc9b5

// A Digest is a checksum of a file. The zero Digest means unknown.
type Digest struct {
	Algorithm Algorithm
	Sum       string // lower-case hex
}

// String is ALGORITHM:SUM, "" for the zero Digest.
func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return string(d.Algorithm) + ":" + d.Sum
}

// hash begins the sum of a file of that size; nil for the zero Digest and for algorithms that are not known.
func (d Digest) hash(size int64) hash.Hash {
	switch d.Algorithm {
	case SHA256:
		return sha256.New()
	case SHA1:
		return sha1.New()
	case MD5:
		return md5.New()
	case CRC64NVME:
		return crc64.New(crc64.MakeTable(nvme))
	case CRC32C:
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case CRC32:
		return crc32.NewIEEE()
	case GitBlob:
		h := sha1.New()
		fmt.Fprintf(h, "blob %d\x00", size)
		return h
	}
	return nil
}

// compare checks the bytes that h has seen against d.
func (d Digest) compare(name string, h hash.Hash) error {
	if got := hex.EncodeToString(h.Sum(nil)); got != d.Sum {
		return &Error{Kind: ErrDigest, Note: name, Cause: fmt.Errorf("%s is %s, want %s", d.Algorithm, got, d.Sum)}
	}
	return nil
}
