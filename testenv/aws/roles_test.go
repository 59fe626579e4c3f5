package aws

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"
)

const (
	trust  = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sts:AssumeRole","Principal":{"Service":"ec2.amazonaws.com"}}]}`
	policy = `{"Version":"2012-10-17","Statement":[
		{"Sid":"Stop","Effect":"Allow","Action":"ec2:StopInstances","Resource":"arn:aws:ec2:us-east-1:123456789012:instance/*",
		 "Condition":{"StringEquals":{"aws:ResourceTag/Project":"p"},"Null":{"aws:ResourceTag/Host":"false"}}},
		{"Sid":"Read","Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::bucket/models/*"]},
		{"Sid":"Secret","Effect":"Deny","Action":"s3:*","Resource":"arn:aws:s3:::*/models/secret"},
		{"Sid":"Secrets","Effect":"Allow","Action":"secretsmanager:GetSecretValue","Resource":"*"},
		{"Sid":"Key","Effect":"Allow","Action":"kms:Decrypt","Resource":"arn:aws:kms:us-east-1:123456789012:key/ours"},
		{"Sid":"List","Effect":"Allow","Action":"s3:ListBucket","Resource":"arn:aws:s3:::bucket","Condition":{"StringLike":{"s3:prefix":["models/*"]}}}]}`
)

// iam calls an action of IAM, of which the project has no client.
func (e *Emulator) iam(action string, args ...string) {
	e.t.Helper()
	form := url.Values{"Action": {action}, "Version": {"2010-05-08"}}
	for i := 0; i < len(args); i += 2 {
		form.Set(args[i], args[i+1])
	}
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.URL, strings.NewReader(form.Encode()))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=none")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s: %s %s", action, resp.Status, text)
	}
}

// TestRoles: what an instance does is held against the policies of the role in its profile, and its boundary.
func TestRoles(t *testing.T) {
	e := Start(t, 0)
	e.PutObject("bucket", "models/a", "weights")
	e.PutObject("bucket", "models/secret", "weights")
	e.iam("CreateRole", "RoleName", "r", "AssumeRolePolicyDocument", trust)
	e.iam("PutRolePolicy", "RoleName", "r", "PolicyName", "p", "PolicyDocument", policy)
	e.iam("CreateInstanceProfile", "InstanceProfileName", "i")
	e.iam("AddRoleToInstanceProfile", "InstanceProfileName", "i", "RoleName", "r")
	run := func(tags ...string) string {
		t.Helper()
		var list []types.Tag
		for _, k := range tags {
			list = append(list, types.Tag{Key: sdk.String(k), Value: sdk.String("p")})
		}
		out, err := ec2.NewFromConfig(e.Config()).RunInstances(t.Context(), &ec2.RunInstancesInput{
			ImageId: sdk.String(Image), MinCount: sdk.Int32(1), MaxCount: sdk.Int32(1),
			IamInstanceProfile: &types.IamInstanceProfileSpecification{Name: sdk.String("i")},
			TagSpecifications:  []types.TagSpecification{{ResourceType: types.ResourceTypeInstance, Tags: list}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return *out.Instances[0].InstanceId
	}
	host, gateway, other := run("Project", "Host"), run("Project"), run("Host")
	config := e.ConfigAs(e.InstanceRole(host))
	machines := ec2.NewFromConfig(config)
	objects := s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true })
	stop := func(ids ...string) error {
		_, err := machines.StopInstances(t.Context(), &ec2.StopInstancesInput{InstanceIds: ids})
		return err
	}
	get := func(key string) error {
		_, err := objects.GetObject(t.Context(), &s3.GetObjectInput{Bucket: sdk.String("bucket"), Key: &key})
		return err
	}
	list := func(prefix *string) error {
		_, err := objects.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: sdk.String("bucket"), Prefix: prefix})
		return err
	}
	secrets := secretsmanager.NewFromConfig(config)
	secret := func(key string) error {
		t.Helper()
		in := &secretsmanager.CreateSecretInput{Name: sdk.String("of " + key), SecretString: sdk.String("x"), KmsKeyId: sdk.String(key)}
		if _, err := secretsmanager.NewFromConfig(e.Config()).CreateSecret(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		_, err := secrets.GetSecretValue(t.Context(), &secretsmanager.GetSecretValueInput{SecretId: in.Name})
		return err
	}
	_, looks := machines.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	unknown := e.ConfigAs(Role{AccessKeyID: "AKIA0000000000000000", SecretAccessKey: "x"})
	_, stranger := ec2.NewFromConfig(unknown).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	for _, c := range []struct {
		what string
		err  error
		code string // "": allowed
	}{
		{"an instance with both tags", stop(host), ""},
		{"an instance without Host", stop(gateway), "UnauthorizedOperation"},
		{"an instance without Project", stop(other), "UnauthorizedOperation"},
		{"an instance that may be stopped and one that may not", stop(host, gateway), "UnauthorizedOperation"},
		{"an action of no statement", looks, "UnauthorizedOperation"},
		{"a key of nobody", stranger, "InvalidClientTokenId"},
		{"an object", get("models/a"), ""},
		{"an object that is denied", get("models/secret"), "AccessDenied"},
		{"an object that is not there, to one who may not list", get("models/none"), "AccessDenied"},
		{"a secret that a key encrypts", secret("arn:aws:kms:us-east-1:123456789012:key/ours"), ""},
		{"a secret that another key encrypts", secret("arn:aws:kms:us-east-1:123456789012:key/other"), "AccessDeniedException"},
		{"a prefix", list(sdk.String("models/")), ""},
		{"another prefix", list(sdk.String("config/")), "AccessDenied"},
		{"no prefix", list(nil), "AccessDenied"},
	} {
		if got := code(c.err); got != c.code {
			t.Errorf("%s: %q (%v), want %q", c.what, got, c.err, c.code)
		}
	}
	want := []Grant{
		{"r", "Key", "kms:Decrypt"}, {"r", "List", "s3:ListBucket"}, {"r", "Read", "s3:GetObject"}, {"r", "Secrets", "secretsmanager:GetSecretValue"},
		{"r", "Stop", "ec2:StopInstances"},
	}
	if got := e.Grants(); !slices.Equal(got, want) {
		t.Errorf("grants %v, want %v", got, want)
	}

	e.iam("CreatePolicy", "PolicyName", "b", "PolicyDocument", `{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}`)
	e.iam("PutRolePermissionsBoundary", "RoleName", "r", "PermissionsBoundary", "arn:aws:iam::123456789012:policy/b")
	if err := get("models/a"); err != nil {
		t.Error("within the boundary:", err)
	}
	if got := code(stop(host)); got != "UnauthorizedOperation" {
		t.Errorf("beyond the boundary: %q", got)
	}
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
