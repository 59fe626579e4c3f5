package aws

import (
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// TestDeletedObject: a bucket that has kept versions and keeps none any more can be emptied, as Terraform does with one that
// it destroys, although an object was deleted meanwhile.
func TestDeletedObject(t *testing.T) {
	e := Start(t, 0)
	e.PutObject("bucket", "a", "text")
	bucket, key := sdk.String("bucket"), sdk.String("a")
	client := s3.NewFromConfig(e.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	keep := func(status types.BucketVersioningStatus) {
		t.Helper()
		_, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
			Bucket: bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: status},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	keep(types.BucketVersioningStatusEnabled)
	if _, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: key}); err != nil {
		t.Fatal(err)
	}
	keep(types.BucketVersioningStatusSuspended)
	versions, err := client.ListObjectVersions(t.Context(), &s3.ListObjectVersionsInput{Bucket: bucket})
	if err != nil || len(versions.Versions) != 1 || len(versions.DeleteMarkers) != 1 {
		t.Fatalf("%+v, %v, want a version and a delete marker", versions, err)
	}
	for _, id := range []*string{versions.Versions[0].VersionId, versions.DeleteMarkers[0].VersionId} {
		if _, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: key, VersionId: id}); err != nil {
			t.Errorf("version %s: %v", *id, err)
		}
	}
	if _, err := client.DeleteBucket(t.Context(), &s3.DeleteBucketInput{Bucket: bucket}); err != nil {
		t.Error(err)
	}
}
