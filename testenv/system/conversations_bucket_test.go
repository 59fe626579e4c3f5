package system

import (
	"strings"
	"syscall"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A conversation outlives its host in a bucket: the host that loads the model next, which has never had it, goes on from there. Forgetting empties the
// bucket.
func TestConversationsInABucket(t *testing.T) {
	testenv.Engines(t)
	const secret = "a secret of sixteen or more"
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: CHECKPOINT, device: cpu, options: {ctx_size: 8192, llamacpp_args: "-np 2 --swa-full"}}
hosts:
  a: {driver: exec, devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}
  b: {driver: exec, devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}
`
	cloud := aws.Start(t, 0)
	client := s3.NewFromConfig(cloud.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	bucket := "talks"
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	objects := func() (keys []string) {
		t.Helper()
		list, err := client.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Contents {
			keys = append(keys, sdk.ToString(o.Key))
		}
		return keys
	}
	env := []string{"AWS_ENDPOINT_URL=" + cloud.URL, "AWS_REGION=" + aws.Region, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true"}
	server := testenv.StartRedis(t)
	url := "redis://" + server.Addr
	host := func(name string) *testenv.Program {
		p, _ := testenv.StartRunnerEnv(t, env, url, secret, name, t.TempDir(), "--conversations-url=s3://"+bucket+"/pools")
		return p
	}
	rdb := worlds.RedisAt(t, server.Addr)
	is := func(name, state string) {
		t.Helper()
		kit.Becomes(t, name+" in Redis", state, func() string { return rdb.HGet(t.Context(), "rv:{main}:host:"+name, "state").Val() })
	}
	a := host("a")
	s := &testenv.System{Program: testenv.StartGateway(t, url, secret, strings.Replace(models, "CHECKPOINT", testenv.Models(t).Tiny, 1))}
	is("a", "ready")
	talk := []message{about("Ada")}
	first := say(t, s, "talker", talk...)
	talk = append(talk, first.Choices[0].Message, message{"user", "And then?"})
	want := say(t, s, "talker", talk...)
	a.Signal(syscall.SIGTERM)
	<-a.Exited()
	is("a", "asleep")
	if got := objects(); len(got) != 1 || !strings.HasPrefix(got[0], "pools/main/talker/") {
		t.Fatalf("in the bucket are %q", got)
	}

	host("b")
	is("b", "ready")
	known := first.Timings.Cached + first.Timings.Computed
	got := say(t, s, "talker", talk...)
	if got.Timings.Cached < known*95/100 || got.restored == "" || got.Choices[0].Message != want.Choices[0].Message {
		t.Errorf("on another host %d tokens came from the cache, want at least %d; %q; the answer is %q, on the first %q", got.Timings.Cached, known*95/100, got.restored, got.Choices[0].Message, want.Choices[0].Message)
	}
	if out := forget(t, s, "talker"); out != "a: asleep, forgets when it wakes\nb: 1 saved conversation forgotten, 1 loaded copy unloaded\n" {
		t.Errorf("it says %q", out)
	}
	if got := objects(); len(got) != 0 {
		t.Errorf("after a forget the bucket has %q", got)
	}
	if got := say(t, s, "talker", talk...); got.Timings.Cached > 16 || got.restored != "" {
		t.Errorf("after a forget %d tokens came from the cache, %q", got.Timings.Cached, got.restored)
	}
}
