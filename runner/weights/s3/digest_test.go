package s3

import (
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func TestDigestIsTheStrongestChecksum(t *testing.T) {
	const etag = `"25F9E794323B453885F5181F1B624D0B"`
	crc, sum := sdk.String("rosUhgp5mIg="), sdk.String("FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=")
	for name, c := range map[string]struct {
		head awss3.HeadObjectOutput
		want string
	}{
		"nothing":                       {awss3.HeadObjectOutput{}, ""},
		"put in one piece":              {awss3.HeadObjectOutput{ETag: sdk.String(etag)}, "md5:25f9e794323b453885f5181f1b624d0b"},
		"encrypted by S3":               {awss3.HeadObjectOutput{ETag: sdk.String(etag), ServerSideEncryption: types.ServerSideEncryptionAes256}, "md5:25f9e794323b453885f5181f1b624d0b"},
		"encrypted with a key":          {awss3.HeadObjectOutput{ETag: sdk.String(etag), ServerSideEncryption: types.ServerSideEncryptionAwsKms}, ""},
		"encrypted by the client":       {awss3.HeadObjectOutput{ETag: sdk.String(etag), SSECustomerAlgorithm: sdk.String("AES256")}, ""},
		"put in parts":                  {awss3.HeadObjectOutput{ETag: sdk.String(`"25f9e794323b453885f5181f1b624d0b-3"`)}, ""},
		"a sum of the whole":            {awss3.HeadObjectOutput{ETag: sdk.String(etag), ChecksumCRC64NVME: crc, ChecksumType: types.ChecksumTypeFullObject}, "crc64nvme:ae8b14860a799888"},
		"the strongest":                 {awss3.HeadObjectOutput{ChecksumCRC64NVME: crc, ChecksumSHA256: sum}, "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"},
		"a sum of sums":                 {awss3.HeadObjectOutput{ETag: sdk.String(`"aa-3"`), ChecksumSHA256: sum, ChecksumType: types.ChecksumTypeComposite}, ""},
		"a sum of sums, as it once was": {awss3.HeadObjectOutput{ChecksumSHA256: sdk.String(*sum + "-3")}, ""},
	} {
		if got := digest(&c.head).String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
