package weights

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"reveille/infra/catalog"
)

// A Location is where weights come from.
type Location struct {
	catalog.Checkpoint
	SHA256 string // of its only file, in lower-case hex; "": the source's checksum counts
}

// A Source reads weights at locations of one scheme. Its methods and those of its files are safe for concurrent use.
// Their errors are [*Error], without a location, or count as [ErrFetch]. Errors contain no secrets.
type Source interface {
	// Stat describes the file with that name. It returns ErrNotFound if there is none; there can be a folder.
	Stat(ctx context.Context, at catalog.Checkpoint) (File, error)
	// List describes all files below a folder of that name, in order of their names. A whole repository is the folder
	// with the name "". It can stop after MaxFiles+1 files.
	List(ctx context.Context, at catalog.Checkpoint) ([]File, error)
}

// A File is a source's description of one file.
type File struct {
	Name     string // below its folder, with slashes
	Size     int64  // -1: unknown; NoRanges is set then
	Digest   Digest // zero if the source reports no reliable checksum
	NoRanges bool   // it can only be read from the start
	// Open reads n bytes of the file from an offset. The reader can return more, or end early.
	Open func(ctx context.Context, from, n int64) (io.ReadCloser, error)
}

// An Algorithm is a checksum algorithm.
type Algorithm string

// The algorithms that sources use.
const (
	SHA256    Algorithm = "sha256"
	SHA1      Algorithm = "sha1"
	MD5       Algorithm = "md5"
	CRC64NVME Algorithm = "crc64nvme"
	CRC32C    Algorithm = "crc32c"
	CRC32     Algorithm = "crc32"
	GitBlob   Algorithm = "git-sha1" // SHA-1 of the bytes after Git's blob header
)

// nvme is the polynomial of CRC-64/NVME, reflected.
const nvme = 0x9a6c9329ac4bc9b5

// A Digest is a checksum of a file. The zero Digest means unknown.
type Digest struct {
	Algorithm Algorithm
	Sum       string // lower-case hex
}

// String returns ALGORITHM:SUM, "" for the zero Digest.
func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return string(d.Algorithm) + ":" + d.Sum
}

// hash returns a hash for a file of that size, nil for the zero Digest and unknown algorithms.
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

// compare compares the checksum of h with d.
func (d Digest) compare(name string, h hash.Hash) error {
	if got := hex.EncodeToString(h.Sum(nil)); got != d.Sum {
		return &Error{Kind: ErrDigest, Note: name, Cause: fmt.Errorf("%s is %s, want %s", d.Algorithm, got, d.Sum)}
	}
	return nil
}
