package conversations

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"reveille/infra/state"
	"reveille/runner/engineslots"
	"reveille/runner/weights/s3"
	"reveille/testenv"
	"reveille/testenv/aws"
)

// counted counts the calls of a client.
type counted struct {
	sdk.HTTPClient
	calls atomic.Int32
}

func (c *counted) Do(r *http.Request) (*http.Response, error) {
	c.calls.Add(1)
	return c.HTTPClient.Do(r)
}

// stored is an object.
type stored struct {
	key, mac string
	body     []byte
}

func (o *stored) put(t *testing.T, client *awss3.Client, bucket string) {
	t.Helper()
	in := &awss3.PutObjectInput{Bucket: &bucket, Key: &o.key, Body: bytes.NewReader(o.body), Metadata: map[string]string{macName: o.mac}}
	if _, err := client.PutObject(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}

// objects returns what a bucket holds.
func objects(t *testing.T, client *awss3.Client, bucket string) (out []stored) {
	t.Helper()
	list, err := client.ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Contents {
		got, err := client.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: o.Key})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, stored{*o.Key, got.Metadata[macName], body})
	}
	return out
}

// eventually waits for what a store does in the background.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: ", what)
		}
	}
}

// TestBucket runs on one emulator, since its start is what costs time.
func TestBucket(t *testing.T) {
	cfg := aws.Start(t, 0).Config()
	t.Run("fetch", func(t *testing.T) { fetchFromBucket(t, cfg) })
	t.Run("follow", func(t *testing.T) { followInBucket(t, s3.Client(cfg)) })
}

// A host finds in the bucket what another one put there that sleeps or is gone, and uses nothing else that is there:
// nothing changed, cut short, renamed or signed by another secret.
func fetchFromBucket(t *testing.T, cfg sdk.Config) {
	client := s3.Client(cfg)
	url := "redis://" + testenv.Redis(t)
	owner, prompt := engineslots.TenantOf("ann"), engineslots.PromptOf(bytes.Repeat([]byte("a"), 1000))
	talk := count(1, 1000)
	p := process(t, filepath.Join(t.TempDir(), "m.gguf"))
	made := 0
	newBucket := func() string {
		made++
		name := fmt.Sprint("conversations-", made)
		if _, err := client.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &name}); err != nil {
			t.Fatal(err)
		}
		return name
	}
	first := newBucket()
	a := openIn(t, url, "a", &Bucket{Client: client, Name: first, Prefix: "some/pool", Secret: secret})
	saves := func(s *Store, p Process, bucket string, tokens []uint32) []stored {
		t.Helper()
		l, table := newLlama(t, 1), engineslots.New(1, nil)
		run(t, s, p, l, table, func(e *Engine) {
			l.holding(0, tokens, 1)(e)
			table.Restored(0, owner, prompt)
		})
		eventually(t, "one object", func() bool { return len(objects(t, client, bucket)) == 1 })
		return objects(t, client, bucket)
	}
	good := saves(a, p, first, talk)[0]
	if !strings.HasPrefix(good.key, "some/pool/m/") || bytes.Contains([]byte(good.key+good.mac), secret) {
		t.Fatalf("the key is %s", good.key)
	}
	second := newBucket()
	flags := process(t, p.Checkpoint, "--swa-full")
	another := saves(openIn(t, url, "c", &Bucket{Client: client, Name: second, Prefix: "some/pool", Secret: secret}), flags, second, talk)[0]

	named := func(change func(h *header)) string {
		var h header
		_ = binary.Read(bytes.NewReader(good.body), binary.LittleEndian, &h)
		change(&h)
		return good.key[:strings.LastIndexByte(good.key, '/')+1] + objectName(&h)
	}
	for name, c := range map[string]struct {
		put    func(o *stored) // what another one puts in its place
		beside []string        // keys of more objects
		flags  []string
		secret string
		limit  int64
		want   bool
		sister bool // the host that saved is awake
	}{
		"in order":             {want: true},
		"with foreign objects": {beside: []string{"x", "some/pool/m/x", good.key + "x", good.key[:len(good.key)-1], good.key + "/1-2-3-4"}, want: true},
		"other flags":          {flags: []string{"--flash-attn"}},
		"another secret":       {secret: "another secret of the same length"},
		"not signed":           {put: func(o *stored) { o.mac = "" }},
		"cut short":            {put: func(o *stored) { o.body = o.body[:len(o.body)-5] }},
		"too short for a head": {put: func(o *stored) { o.body = o.body[:100] }},
		"longer":               {put: func(o *stored) { o.body = append(slices.Clone(o.body), 1) }},
		"changed":              {put: func(o *stored) { o.body = flipped(o.body, true, len(o.body)-1) }},
		"changed with its checksum": {put: func(o *stored) {
			o.body = flipped(o.body, true, len(o.body)-1)
			sum := crc32.Checksum(o.body[headerSize:], castagnoli)
			o.key = named(func(h *header) { h.CRC = sum })
			at := bytes.Index(o.body[:headerSize], binary.LittleEndian.AppendUint32(nil, crc32.Checksum(good.body[headerSize:], castagnoli)))
			binary.LittleEndian.PutUint32(o.body[at:], sum)
		}},
		"another engine's":      {put: func(o *stored) { o.body, o.mac = another.body, another.mac }},
		"expired":               {put: func(o *stored) { o.key = named(func(h *header) { h.SavedMS -= 25 * 3600 * 1000 }) }},
		"of no worth":           {put: func(o *stored) { o.key = named(func(h *header) { h.PromptMS = 0 }) }},
		"cheap to compute":      {put: func(o *stored) { o.key = named(func(h *header) { h.PromptMS = 1; h.Tokens = 999 }) }},
		"larger than the store": {limit: 1000},
		"on an awake host":      {sister: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := newBucket()
			o := good
			if c.put != nil {
				c.put(&o)
			}
			o.put(t, client, bucket)
			for _, key := range c.beside {
				(&stored{key: key, body: []byte("foreign")}).put(t, client, bucket)
			}
			mine := cfg
			calls := &counted{HTTPClient: cfg.HTTPClient}
			mine.HTTPClient = calls
			b := openIn(t, url, "b", &Bucket{Client: s3.Client(mine), Name: bucket, Prefix: "some/pool", Secret: []byte(cmp.Or(c.secret, string(secret)))})
			if c.limit > 0 {
				b.cfg.Bytes = c.limit
			}
			if c.sister {
				var asked atomic.Int32
				addr := serve(t, a, &answers{}, &asked)
				generation, _, err := b.cfg.Pool.State.Register(t.Context(), state.HostInfo{Name: "a", Boot: name, Addr: addr, Devices: "cpu"})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := b.cfg.Pool.State.SetHostState(t.Context(), "a", generation, "asleep"); err != nil {
						t.Error(err)
					}
				}()
			}
			l, table := newLlama(t, 2), engineslots.New(2, nil)
			got := run(t, b, process(t, p.Checkpoint, c.flags...), l, table, func(*Engine) {})
			if (len(got[0]) > 0) != c.want || c.want && !slices.Equal(got[0], talk) || len(got[1]) > 0 {
				t.Errorf("restored %d and %d tokens", len(got[0]), len(got[1]))
			}
			if who, what, ok := table.Held(0); c.want && (who != owner || what != prompt || !ok) {
				t.Errorf("they are of %x", who)
			}
			if files := names(t, b.cfg.Dir); (len(files) == 1) != c.want || len(files) > 1 {
				t.Errorf("the store holds %v", files)
			}
			if n := calls.calls.Load(); (n == 0) != c.sister {
				t.Errorf("%d calls to the bucket", n)
			}
		})
	}
}

// The bucket holds one state of a conversation, whichever host saved it. Forgetting reaches what is there, and
// nothing that is not the pool's.
func followInBucket(t *testing.T, client *awss3.Client) {
	bucket := "conversations"
	if _, err := client.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	url := "redis://" + testenv.Redis(t)
	p := process(t, filepath.Join(t.TempDir(), "m.gguf"))
	p.Model = "org/m:q4" // a name that a key cannot hold as it is
	host := func(name string) *Store {
		return openIn(t, url, name, &Bucket{Client: client, Name: bucket, Prefix: "pool", Secret: secret})
	}
	a, l := host("a"), newLlama(t, 2)
	run(t, a, p, l, nil, func(e *Engine) {
		l.holding(0, count(1, 100), 1)(e)
		l.holding(1, count(2, 100), 2)(e)
	})
	a.Close() // waits for the bucket
	if got := objects(t, client, bucket); len(got) != 2 {
		t.Fatalf("%d objects", len(got))
	}
	b, l := host("b"), newLlama(t, 2)
	run(t, b, p, l, nil, l.holding(0, count(2, 200), 3)) // the last used is in the first slot
	if got := b.m.fetched.Get(); got != 2 {
		t.Errorf("%d conversations were fetched", got)
	}
	b.Close()
	sizes := map[int]bool{}
	for _, o := range objects(t, client, bucket) {
		sizes[len(o.body)-int(headerSize)-112] = true
	}
	if len(sizes) != 2 || !sizes[400] || !sizes[800] {
		t.Errorf("the objects are of %v bytes of tokens, want those of the first conversation's 100 and the second one's 200", sizes)
	}

	foreign := []stored{{key: "else/m/x"}, {key: "pool/" + hex.EncodeToString(secret)}, {key: "pool/other/" + strings.Repeat("ab", 32) + "/" + objectName(&header{SavedMS: 1, Tokens: 2, PromptMS: 3, CRC: 4})}}
	for _, o := range foreign {
		o.put(t, client, bucket)
	}
	c := host("c")
	if err := c.Forget(p.Model, now()).Wait(); err != nil {
		t.Error(err)
	}
	if got := objects(t, client, bucket); len(got) != 3 {
		t.Errorf("after the model is forgotten %d objects are left", len(got))
	}
	if err := c.Forget("", now()).Wait(); err != nil {
		t.Error(err)
	}
	if got := objects(t, client, bucket); len(got) != 2 {
		t.Errorf("after all are forgotten %d objects are left", len(got))
	}
}
