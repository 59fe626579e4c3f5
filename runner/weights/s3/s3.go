// Package s3 reads weights from buckets of S3, or of a store with the same protocol.
package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

// API is the part of S3 that a source calls; [awss3.Client] implements it.
type API interface {
	HeadObject(context.Context, *awss3.HeadObjectInput, ...func(*awss3.Options)) (*awss3.HeadObjectOutput, error)
	GetObject(context.Context, *awss3.GetObjectInput, ...func(*awss3.Options)) (*awss3.GetObjectOutput, error)
	ListObjectsV2(context.Context, *awss3.ListObjectsV2Input, ...func(*awss3.Options)) (*awss3.ListObjectsV2Output, error)
}

// Source is S3 with one account's credentials. It is safe for concurrent use.
type Source struct {
	client func(context.Context) (API, error)

	mu  sync.Mutex // guards api; held while it is created
	api API
}

var _ weights.Source = (*Source)(nil)

// New returns a source. It calls client at the first request for an object, and again after a failure.
func New(client func(context.Context) (API, error)) *Source { return &Source{client: client} }

// Client returns a client with AWS's settings. It requests no checksums, because ranges have none. Other stores than
// AWS have no host name for each bucket, so their bucket is in the path.
func Client(cfg aws.Config) *awss3.Client {
	return awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.UsePathStyle = o.BaseEndpoint != nil
	})
}

// connect returns the client, which it creates if necessary.
func (s *Source) connect(ctx context.Context) (API, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.api != nil {
		return s.api, nil
	}
	api, err := s.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("AWS settings: %w", err)
	}
	s.api = api
	return api, nil
}

// Stat describes an object.
func (s *Source) Stat(ctx context.Context, at catalog.Checkpoint) (weights.File, error) {
	api, err := s.connect(ctx)
	if err != nil {
		return weights.File{}, err
	}
	head, err := api.HeadObject(ctx, &awss3.HeadObjectInput{
		Bucket: &at.Bucket, Key: &at.Path, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		return weights.File{}, classify("HEAD", at, err)
	}
	f := weights.File{Name: path.Base(at.Path), Size: aws.ToInt64(head.ContentLength), Digest: digest(head)}
	f.Open = func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		out, err := api.GetObject(ctx, &awss3.GetObjectInput{
			Bucket: &at.Bucket, Key: &at.Path, IfMatch: head.ETag, Range: aws.String(fmt.Sprintf("bytes=%d-%d", from, from+n-1)),
		})
		if err != nil {
			return nil, classify("GET", at, err)
		}
		if got, want := aws.ToString(out.ContentRange), fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, f.Size); got != want {
			_ = out.Body.Close()
			return nil, &weights.Error{Kind: weights.ErrChanged, Cause: fmt.Errorf("GET %s: range %.100q, want %q", at, got, want)}
		}
		return out.Body, nil
	}
	return f, nil
}

// List lists the objects below a folder, with one more request for each.
func (s *Source) List(ctx context.Context, at catalog.Checkpoint) ([]weights.File, error) {
	api, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	prefix := at.Path + "/"
	var out []weights.File
	pages := awss3.NewListObjectsV2Paginator(api, &awss3.ListObjectsV2Input{Bucket: &at.Bucket, Prefix: &prefix})
	for pages.HasMorePages() && len(out) <= weights.MaxFiles {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, classify("LIST", at, err)
		}
		for _, o := range page.Contents {
			object := at
			object.Path = aws.ToString(o.Key)
			if strings.HasSuffix(object.Path, "/") || len(out) > weights.MaxFiles { // "/": a folder's own object
				continue
			}
			f, err := s.Stat(ctx, object)
			if err != nil {
				return nil, err
			}
			f.Name = strings.TrimPrefix(object.Path, prefix)
			out = append(out, f)
		}
	}
	return out, nil // S3 lists them in order
}

// digest returns the strongest checksum of an object's bytes that S3 reports, of the whole object, not of its parts.
// Without one it returns the ETag if that is a checksum: if the object was uploaded in one piece and is not encrypted
// with a separate key.
func digest(h *awss3.HeadObjectOutput) weights.Digest {
	if h.ChecksumType != types.ChecksumTypeComposite {
		for _, sum := range []struct {
			algorithm weights.Algorithm
			base64    *string
		}{
			{weights.SHA256, h.ChecksumSHA256}, {weights.SHA1, h.ChecksumSHA1}, {weights.CRC64NVME, h.ChecksumCRC64NVME},
			{weights.CRC32C, h.ChecksumCRC32C}, {weights.CRC32, h.ChecksumCRC32},
		} {
			// Base64 has no "-", which older composite sums have.
			if raw, err := base64.StdEncoding.DecodeString(aws.ToString(sum.base64)); err == nil && len(raw) > 0 {
				return weights.Digest{Algorithm: sum.algorithm, Sum: hex.EncodeToString(raw)}
			}
		}
	}
	plain := h.SSECustomerAlgorithm == nil &&
		(h.ServerSideEncryption == "" || h.ServerSideEncryption == types.ServerSideEncryptionAes256)
	etag := strings.Trim(aws.ToString(h.ETag), `"`)
	if raw, err := hex.DecodeString(etag); err == nil && len(raw) == 16 && plain {
		return weights.Digest{Algorithm: weights.MD5, Sum: strings.ToLower(etag)}
	}
	return weights.Digest{}
}

// classify turns S3's errors into those of weights.
func classify(verb string, at catalog.Checkpoint, err error) error {
	if ctxErr := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded); ctxErr {
		return err
	}
	code, status := "", 0
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		code = e.ErrorCode()
	}
	if e, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		status = e.HTTPStatusCode()
	}
	if status == 0 {
		return fmt.Errorf("%s %s: %w", verb, at, err)
	}
	e := &weights.Error{Kind: weights.ErrFetch, Note: fmt.Sprintf("status %d %s", status, code)}
	e.Cause = fmt.Errorf("%s %s: %w", verb, at, err)
	switch status {
	case http.StatusForbidden:
		e.Kind = weights.ErrDenied
		e.Note += "; access is denied, or it does not exist and listing the bucket is denied"
	case http.StatusUnauthorized:
		e.Kind = weights.ErrDenied
	case http.StatusNotFound:
		e.Kind = weights.ErrNotFound
	case http.StatusMovedPermanently:
		e.Kind, e.Note = weights.ErrNotFound, "the bucket is in another region"
	case http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
		e.Kind = weights.ErrChanged
	case http.StatusBadRequest:
		e.Kind = weights.ErrDenied // an expired token or an invalid bucket name
	}
	return e
}
