// Package s3 finds weights in buckets of S3, or of a store that speaks its protocol.
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

// Source is S3 as one account sees it. It is safe for concurrent use.
type Source struct {
	client func(context.Context) (API, error)

	mu  sync.Mutex // guards api; held while it is made
	api API
}

var _ weights.Source = (*Source)(nil)

// New makes a source. It calls client at the first request for an object, and again while it fails.
func New(client func(context.Context) (API, error)) *Source { return &Source{client: client} }

// Client makes a client for AWS's settings. Ranges have no checksum of their own, so none is asked for; stores that
// are not AWS have no name for each bucket, so the path names it.
func Client(cfg aws.Config) *awss3.Client {
	return awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.UsePathStyle = o.BaseEndpoint != nil
	})
}

func (s *Source) ask(ctx context.Context) (API, error) {
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

// Stat asks S3 for an object.
func (s *Source) Stat(ctx context.Context, at catalog.Checkpoint) (weights.File, error) {
	api, err := s.ask(ctx)
	if err != nil {
		return weights.File{}, err
	}
	head, err := api.HeadObject(ctx, &awss3.HeadObjectInput{
		Bucket: &at.Bucket, Key: &at.Path, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		return weights.File{}, refused("HEAD", at, err)
	}
	f := weights.File{Name: path.Base(at.Path), Size: aws.ToInt64(head.ContentLength), Digest: digest(head)}
	f.Open = func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		out, err := api.GetObject(ctx, &awss3.GetObjectInput{
			Bucket: &at.Bucket, Key: &at.Path, IfMatch: head.ETag, Range: aws.String(fmt.Sprintf("bytes=%d-%d", from, from+n-1)),
		})
		if err != nil {
			return nil, refused("GET", at, err)
		}
		if got, want := aws.ToString(out.ContentRange), fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, f.Size); got != want {
			_ = out.Body.Close()
			return nil, &weights.Error{Kind: weights.ErrChanged, Cause: fmt.Errorf("GET %s: range %.100q, want %q", at, got, want)}
		}
		return out.Body, nil
	}
	return f, nil
}

// List asks S3 for the objects below a folder, and then for each.
func (s *Source) List(ctx context.Context, at catalog.Checkpoint) ([]weights.File, error) {
	api, err := s.ask(ctx)
	if err != nil {
		return nil, err
	}
	prefix := at.Path + "/"
	var out []weights.File
	pages := awss3.NewListObjectsV2Paginator(api, &awss3.ListObjectsV2Input{Bucket: &at.Bucket, Prefix: &prefix})
	for pages.HasMorePages() && len(out) <= weights.MaxFiles {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, refused("LIST", at, err)
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

// digest is the strongest checksum of an object's bytes that S3 tells: those of the whole object, not of its parts; or
// its ETag where that is one: of an object that was put in one piece and is not encrypted with a key of its own.
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

// refused classifies errors of S3.
func refused(verb string, at catalog.Checkpoint, err error) error {
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
		e.Note += "; it is not allowed, or does not exist and listing the bucket is not allowed"
	case http.StatusUnauthorized:
		e.Kind = weights.ErrDenied
	case http.StatusNotFound:
		e.Kind = weights.ErrNotFound
	case http.StatusMovedPermanently:
		e.Kind, e.Note = weights.ErrNotFound, "the bucket is in another region"
	case http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
		e.Kind = weights.ErrChanged
	case http.StatusBadRequest:
		e.Kind = weights.ErrDenied // of a token that has run out, and of a bucket's name that cannot be
	}
	return e
}
