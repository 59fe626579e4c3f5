package conversations

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

const (
	putTimeout   = 5 * time.Minute  // of what is put into the bucket after a save, with the wait for its turn
	closeTimeout = 20 * time.Second // of the same once the store is being closed
	maxObject    = 5 << 30          // bytes that S3 takes in one piece
	macName      = "reveille-mac"   // of the objects' metadata
)

// Bucket is a bucket of S3 in which the pool's hosts put saved conversations, for hosts that load a model while the
// one that has its conversations sleeps or is gone. The bucket's own rules encrypt objects and end their life.
//
// An object is the host's file, with an HMAC under the pool's secret in its metadata. Its key is
// PREFIX/MODEL/IDENTITY/NAME, with NAME as [objectName] writes it, so that a list tells all that decides about a
// fetch.
type Bucket struct {
	Client *s3.Client
	Name   string
	Prefix string // of this pool alone, without a slash at its end
	Secret []byte // of the pool
}

// bucket is a Bucket in use by a store. Its methods do nothing on nil.
type bucket struct {
	Bucket
	store   *Store
	key     [sha256.Size]byte
	putSlot chan struct{} // one put at a time: what waits for its turn may be replaced meanwhile
	speed   float64       // perByte; guarded by store.mu
}

func (s *Store) openBucket(b *Bucket) *bucket {
	if b == nil {
		return nil
	}
	out := &bucket{Bucket: *b, store: s, putSlot: make(chan struct{}, 1)}
	m := hmac.New(sha256.New, b.Secret)
	m.Write([]byte("reveille saved conversations v1"))
	m.Sum(out.key[:0])
	return out
}

func (b *bucket) mac() hash.Hash { return hmac.New(sha256.New, b.key[:]) }

// objectName names an entry's object, so that those saved last come first in a list.
func objectName(h *header) string {
	return fmt.Sprintf("%013d-%d-%d-%08x-%d", newest-h.SavedMS, h.Tokens, int64(h.PromptMS), h.CRC, h.Forgotten)
}

const newest = 9_999_999_999_999 // ms since the epoch, of 13 digits

// listedAs reads an object's name; false if objectName would not write it.
func listedAs(name string, size int64) (c Listed, ok bool) {
	var left, promptMS int64
	if _, err := fmt.Sscanf(name, "%013d-%d-%d-%08x-%d", &left, &c.Tokens, &promptMS, &c.CRC, &c.Forgotten); err != nil {
		return c, false
	}
	c.Name, c.SavedMS, c.PromptMS, c.Bytes = name, newest-left, float64(promptMS), uint64(max(size-headerSize, 0))
	return c, objectName(&header{SavedMS: c.SavedMS, Tokens: c.Tokens, PromptMS: c.PromptMS, CRC: c.CRC, Forgotten: c.Forgotten}) == name
}

func (b *bucket) prefixOf(model string) string {
	return path.Join(b.Prefix, url.PathEscape(model)) + "/"
}

func (b *bucket) object(e *entry) *string {
	return aws.String(b.prefixOf(e.model()) + hex.EncodeToString(e.Identity[:]) + "/" + objectName(&e.header))
}

// put puts what was just saved into the bucket, and removes the earlier states that it replaced. It takes at most
// putTimeout.
func (b *bucket) put(saved, replaced []*entry) {
	if b == nil || len(saved) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), putTimeout)
	defer cancel()
	defer context.AfterFunc(b.store.life, func() {
		select {
		case <-time.After(closeTimeout):
			cancel()
		case <-ctx.Done():
		}
	})()
	select {
	case b.putSlot <- struct{}{}:
		defer func() { <-b.putSlot }()
	case <-ctx.Done():
	}
	for _, e := range saved {
		if err := b.putOne(ctx, e); err != nil {
			b.store.m.notPut.Inc()
			b.store.cfg.Log.Warn("a conversation is not in the bucket", "tokens", e.Tokens, "error", err)
		}
	}
	for _, e := range replaced {
		if _, err := b.Client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Name, Key: b.object(e)}); err != nil {
			b.store.cfg.Log.Debug("an earlier state of a conversation stays in the bucket", "error", err)
		}
	}
}

// putOne puts an entry's file, if it is still there.
func (b *bucket) putOne(ctx context.Context, e *entry) error {
	f, err := b.store.root.Open(e.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if e.size > maxObject {
		return fmt.Errorf("its %d bytes are more than S3 takes in one piece", e.size)
	}
	mac := b.mac()
	if _, err := io.Copy(mac, f); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = b.Client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.Name, Key: b.object(e), Body: f, ContentLength: &e.size, Metadata: map[string]string{macName: hex.EncodeToString(mac.Sum(nil))},
	})
	if err == nil && b.store.forgets(e) { // meanwhile: forget may have looked before
		_, err = b.Client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Name, Key: b.object(e)})
	}
	return err
}

// forget removes the objects of a model that are from before a call of [Store.Forget], "" those of all.
func (b *bucket) forget(ctx context.Context, model string, at uint64) error {
	if b == nil {
		return nil
	}
	prefix := b.Prefix + "/"
	if model != "" {
		prefix = b.prefixOf(model)
	}
	pages := s3.NewListObjectsV2Paginator(b.Client, &s3.ListObjectsV2Input{Bucket: &b.Name, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		var gone []types.ObjectIdentifier
		for _, o := range page.Contents {
			if dir, name := path.Split(aws.ToString(o.Key)); isIdentity(path.Base(dir)) {
				if c, ours := listedAs(name, 0); ours && c.Forgotten < at {
					gone = append(gone, types.ObjectIdentifier{Key: o.Key})
				}
			}
		}
		if len(gone) == 0 {
			continue
		}
		out, err := b.Client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &b.Name, Delete: &types.Delete{Objects: gone, Quiet: aws.Bool(true)}})
		if err != nil {
			return err
		}
		if len(out.Errors) > 0 {
			return fmt.Errorf("%d objects: %s", len(out.Errors), aws.ToString(out.Errors[0].Code))
		}
	}
	return nil
}

func isIdentity(text string) bool {
	_, ok := identityOf(text)
	return ok
}

// ofModel is the bucket as a source of one model's conversations.
type ofModel struct {
	*bucket
	model string
}

func (b ofModel) perByte() *float64 { return &b.speed }

func (b ofModel) list(ctx context.Context, id Identity) (list []Listed, err error) {
	prefix := b.prefixOf(b.model) + hex.EncodeToString(id[:]) + "/"
	page, err := b.Client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.Name, Prefix: &prefix, MaxKeys: aws.Int32(maxListed)})
	if err != nil {
		return nil, err
	}
	for _, o := range page.Contents[:min(len(page.Contents), maxListed)] {
		c, ok := listedAs(strings.TrimPrefix(aws.ToString(o.Key), prefix), aws.ToInt64(o.Size))
		if ok && c.Bytes > 0 && time.Since(time.UnixMilli(c.SavedMS)) < b.store.cfg.TTL {
			list = append(list, c)
		}
	}
	return list, nil
}

func (b ofModel) open(ctx context.Context, id Identity, c Listed) (io.ReadCloser, error) {
	key := b.prefixOf(b.model) + hex.EncodeToString(id[:]) + "/" + c.Name
	out, err := b.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Name, Key: &key})
	if err != nil {
		return nil, err
	}
	size := headerSize + int64(c.Bytes)
	if aws.ToInt64(out.ContentLength) != size {
		return nil, errors.Join(fmt.Errorf("%w: %d bytes in place of %d", errFetch, aws.ToInt64(out.ContentLength), size), out.Body.Close())
	}
	mac := b.mac()
	return &macReader{Closer: out.Body, from: io.TeeReader(io.LimitReader(out.Body, size), mac), mac: mac, want: out.Metadata[macName]}, nil
}

// macReader fails instead of ending if what it has read is not what the MAC is of.
type macReader struct {
	io.Closer
	from io.Reader
	mac  hash.Hash
	want string
}

// Read implements [io.Reader].
func (r *macReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if errors.Is(err, io.EOF) && !hmac.Equal([]byte(r.want), []byte(hex.EncodeToString(r.mac.Sum(nil)))) {
		err = fmt.Errorf("%w: the object is not signed by the pool's secret", errFetch)
	}
	return n, err
}
