package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/runner/weights"
	"reveille/runner/weights/s3"
	"reveille/testenv/aws"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a cache over a bucket of the emulator, behind a wire that can be cut.
type bench struct {
	*testing.T
	api    *awss3.Client
	wire   *wire
	bucket string
	cache  *weights.Cache
	dir    string
}

// wire passes requests on and breaks bodies off.
type wire struct {
	http.Transport
	breaks atomic.Int64 // answers to reads that are still to be broken off in the middle
	reads  atomic.Int64 // reads of ranges
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.Transport.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet && r.Header.Get("Range") != "" {
		w.reads.Add(1)
		if w.breaks.Add(-1) >= 0 {
			resp.Body = broken{io.LimitReader(resp.Body, resp.ContentLength/2), resp.Body}
		}
	}
	return resp, err
}

type broken struct {
	half io.Reader
	io.Closer
}

func (b broken) Read(p []byte) (int, error) {
	n, err := b.half.Read(p)
	if errors.Is(err, io.EOF) {
		err = errors.New("connection reset by the test")
	}
	return n, err
}

// TestObjectsOfTheEmulatorArePulled runs on one emulator, since its start is what costs time; each part has a bucket of
// its own.
func TestObjectsOfTheEmulatorArePulled(t *testing.T) {
	cfg := aws.Start(t, 0).Config()
	t.Run("objects", func(t *testing.T) { start(t, cfg, "objects").objects() })
	t.Run("refusals", func(t *testing.T) { start(t, cfg, "refusals").refusals() })
}

func start(t *testing.T, cfg sdk.Config, bucket string) *bench {
	t.Helper()
	b := &bench{T: t, wire: &wire{}, bucket: bucket, dir: t.TempDir()}
	cfg.HTTPClient = &http.Client{Transport: b.wire}
	t.Cleanup(b.wire.CloseIdleConnections)
	b.api = s3.Client(cfg)
	b.open(b.api)
	_, err := b.api.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &bucket})
	b.must(err)
	return b
}

// open makes a cache over a client; its first need of it fails.
func (b *bench) open(api s3.API) {
	b.Helper()
	failed := false
	src := s3.New(func(context.Context) (s3.API, error) {
		if !failed {
			failed = true
			return nil, errors.New("no settings yet")
		}
		return api, nil
	})
	var err error
	b.cache, err = weights.Open(weights.Config{
		Dir: b.dir, Margin: 1, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeS3: src}, Range: 256 << 10, Ranges: 4, Pause: time.Millisecond,
	})
	b.must(err)
	b.Cleanup(b.cache.Close)
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) put(key string, content []byte, change ...func(*awss3.PutObjectInput)) {
	b.Helper()
	in := &awss3.PutObjectInput{Bucket: &b.bucket, Key: &key, Body: bytes.NewReader(content)}
	for _, c := range change {
		c(in)
	}
	_, err := b.api.PutObject(b.Context(), in)
	b.must(err)
}

func (b *bench) place(key string) weights.Location {
	return weights.Location{Checkpoint: catalog.Checkpoint{Scheme: catalog.SchemeS3, Bucket: b.bucket, Path: key}}
}

func (b *bench) holds(key, file string, want []byte) {
	b.Helper()
	h, err := b.cache.Hold(b.Context(), b.place(key))
	b.must(err)
	defer h.Release()
	got, err := os.ReadFile(filepath.Join(h.Path, file))
	if err != nil || !bytes.Equal(got, want) {
		b.Errorf("%s: %d bytes, %v", key, len(got), err)
	}
}

func content(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }

// A whole object, by ranges that break off; one of many parts; a folder; shards.
func (b *bench) objects() {
	one := content(1<<20 + 5)
	b.put("dir/one m.gguf", one)
	b.wire.breaks.Store(6)
	b.holds("dir/one m.gguf", "", one)
	if n := b.wire.reads.Load(); n != 5+6 {
		b.Errorf("%d reads, want 5 ranges of which 6 were taken up again", n)
	}

	parts := content(5<<20 + 1000)
	b.multipart("parts.gguf", parts)
	b.holds("parts.gguf", "", parts)

	for name, text := range map[string]string{"config.json": "{}", "deep/vocab.txt": "a", "model.safetensors": "weights"} {
		b.put("repo/"+name, []byte(text))
	}
	b.put("repo/", nil) // as consoles make folders
	b.holds("repo", "deep/vocab.txt", []byte("a"))
	b.holds("repo", "model.safetensors", []byte("weights"))

	for i := 1; i <= 2; i++ {
		b.put(fmt.Sprintf("split-0000%d-of-00002.gguf", i), one)
	}
	b.holds("split-00002-of-00002.gguf", "", one)
	b.holds("split-00002-of-00002.gguf", "../split-00001-of-00002.gguf", one)
}

func (b *bench) multipart(key string, content []byte) {
	b.Helper()
	made, err := b.api.CreateMultipartUpload(b.Context(), &awss3.CreateMultipartUploadInput{Bucket: &b.bucket, Key: &key})
	b.must(err)
	var done []types.CompletedPart
	for n := int32(1); len(content) > 0; n++ {
		size := min(len(content), 5<<20)
		part, err := b.api.UploadPart(b.Context(), &awss3.UploadPartInput{
			Bucket: &b.bucket, Key: &key, UploadId: made.UploadId, PartNumber: &n, Body: bytes.NewReader(content[:size]),
		})
		b.must(err)
		done = append(done, types.CompletedPart{PartNumber: &n, ETag: part.ETag})
		content = content[size:]
	}
	_, err = b.api.CompleteMultipartUpload(b.Context(), &awss3.CompleteMultipartUploadInput{
		Bucket: &b.bucket, Key: &key, UploadId: made.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: done},
	})
	b.must(err)
}

// fails pulls what cannot be.
func (b *bench) fails(at weights.Location, want error, words ...string) {
	b.Helper()
	err := b.cache.Pull(b.Context(), at)
	var e *weights.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		b.Fatalf("%s: %v, want %v", at, err, want)
	}
	for _, w := range words {
		if !strings.Contains(e.Message(), w) {
			b.Errorf("%q does not say %q", e.Message(), w)
		}
	}
	left, _ := filepath.Glob(filepath.Join(b.dir, "*", "*"))
	if pulling, _ := filepath.Glob(filepath.Join(b.dir, ".pulling", "*")); len(left)+len(pulling) > 0 {
		b.Errorf("%s: left %v %v", at, left, pulling)
	}
}

func (b *bench) refusals() {
	b.put("m.gguf", content(1000))
	b.fails(b.place("none.gguf"), weights.ErrNotFound, "s3://refusals/none.gguf: ", "404")
	elsewhere := b.place("m.gguf")
	elsewhere.Bucket = "no-such-bucket"
	b.fails(elsewhere, weights.ErrNotFound, "404")
	summed := b.place("m.gguf")
	summed.SHA256 = strings.Repeat("0", 64)
	b.fails(summed, weights.ErrDigest, "m.gguf")

	b.cache.Close()
	b.open(denying{b.api})
	b.fails(b.place("m.gguf"), weights.ErrDenied, "403", "listing the bucket")

	b.cache.Close()
	b.open(narrow{b.api})
	b.put("folder/model.safetensors", []byte("weights"))
	b.fails(b.place("none.gguf"), weights.ErrDenied, "403")
	b.holds("folder", "model.safetensors", []byte("weights"))

	b.cache.Close()
	b.dir = b.TempDir()
	b.open(changing{b.api, b})
	b.fails(b.place("m.gguf"), weights.ErrChanged, "412")

	b.cache.Close()
	b.open(lying{b.api})
	b.fails(b.place("m.gguf"), weights.ErrDigest, "m.gguf")
}

// denying is S3 for an account that may not read.
type denying struct{ s3.API }

func (d denying) HeadObject(ctx context.Context, in *awss3.HeadObjectInput, _ ...func(*awss3.Options)) (*awss3.HeadObjectOutput, error) {
	return d.API.HeadObject(ctx, in, func(o *awss3.Options) { o.HTTPClient = answer(http.StatusForbidden) })
}

// narrow is S3 for an account that may list some of the bucket only: it is not told what is not there.
type narrow struct{ s3.API }

func (n narrow) HeadObject(ctx context.Context, in *awss3.HeadObjectInput, o ...func(*awss3.Options)) (*awss3.HeadObjectOutput, error) {
	out, err := n.API.HeadObject(ctx, in, o...)
	if err != nil {
		return denying(n).HeadObject(ctx, in)
	}
	return out, nil
}

// answer is an HTTP client whose answers all have one status.
type answer int

func (a answer) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// changing is a bucket in which the object is replaced as soon as it was looked at.
type changing struct {
	s3.API
	b *bench
}

func (c changing) HeadObject(ctx context.Context, in *awss3.HeadObjectInput, o ...func(*awss3.Options)) (*awss3.HeadObjectOutput, error) {
	out, err := c.API.HeadObject(ctx, in, o...)
	c.b.put(*in.Key, content(999))
	return out, err
}

// lying is a bucket that hands out other bytes than it promised.
type lying struct{ s3.API }

func (l lying) HeadObject(ctx context.Context, in *awss3.HeadObjectInput, o ...func(*awss3.Options)) (*awss3.HeadObjectOutput, error) {
	out, err := l.API.HeadObject(ctx, in, o...)
	if err == nil {
		out.ChecksumCRC32, out.ChecksumSHA256 = nil, sdk.String("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	}
	return out, err
}
