package weights_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/runner/weights"
	"reveille/runner/weights/hf"
	"reveille/testenv/hub"
)

func TestPullFetchesAndVerifies(t *testing.T) {
	b := start(t)
	b.hub.Private()
	content := noise(1, 1<<20+17)
	b.hub.Put("o/r", "d e/m.gguf", content)
	at := "hf://o/r/d e/m.gguf@refs/pr/1"
	if _, there := b.cache.Path(place(at)); there {
		t.Error("there before it was pulled")
	}
	b.must(b.cache.Pull(t.Context(), place(at)))
	path, there := b.cache.Path(place(at))
	if !there || filepath.Base(path) != "m.gguf" || !filepath.IsAbs(path) {
		t.Errorf("%q, %v", path, there)
	}
	b.holds(at, content)
	if got, size := b.cache.Progress(place(at)); got != int64(len(content)) || size != got {
		t.Errorf("progress %d of %d", got, size)
	}
	reads := b.hub.Reads()
	if len(reads) != 17 {
		t.Errorf("%d ranges of 64 KiB", len(reads))
	}
	asked := b.hub.Asked()
	b.must(b.cache.Pull(t.Context(), place(at))) // there already
	b.cache.Close()
	b.open() // and to the next owner of the folder
	b.holds(at, content)
	if b.hub.Asked() != asked || len(b.hub.Reads()) != len(reads) {
		t.Error("what is there was asked for again")
	}
	if left := b.left(); len(left) != 2 || !strings.HasSuffix(left[0], "/.weights.json") {
		t.Errorf("%v", left)
	}
}

// The server breaks off in the middle of ranges, over and over: each goes on where it stopped.
func TestInterruptedRangesContinue(t *testing.T) {
	b := start(t)
	content := noise(2, 300<<10)
	b.hub.Put("o/r", "m.gguf", content)
	b.hub.Break(20)
	b.holds("hf://o/r/m.gguf", content)
	resumed := 0
	for _, r := range b.hub.Reads() {
		if r.From%(64<<10) != 0 {
			resumed++
		}
	}
	if resumed != 20 {
		t.Errorf("%d ranges were taken up in the middle, want 20: %v", resumed, b.hub.Reads())
	}
}

func TestPullGivesUpOnABrokenSource(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Tries = 3 })
	b.hub.Put("o/r", "m.gguf", noise(3, 100<<10))
	b.hub.Refuse("m.gguf", http.StatusServiceUnavailable, "")
	e := b.fails("hf://o/r/m.gguf", weights.ErrFetch)
	if !strings.Contains(e.Message(), "503") {
		t.Error(e.Message())
	}
	b.hub.Refuse("m.gguf", 0, "")
	b.must(b.cache.Pull(t.Context(), place("hf://o/r/m.gguf")))

	unreachable, err := hf.New("http://127.0.0.1:1", hub.Token)
	b.must(err)
	b.cfg.Sources[catalog.SchemeHF] = unreachable
	if e := b.fails("hf://o/r/n.gguf", weights.ErrFetch); !strings.Contains(e.Error(), "http://127.0.0.1:1/o/r/resolve/main/n.gguf") {
		t.Error(e)
	}
}

// A connection that brings nothing any more is given up, and its range asked for again.
func TestStalledRangeIsReadAgain(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Stall, c.Tries = 100*time.Millisecond, 1000 })
	content := noise(4, 10_000)
	b.hub.Put("o/r", "m.gguf", content)
	b.hub.Shut()
	done := b.later(t.Context(), "hf://o/r/m.gguf")
	b.hub.AwaitReads(2)
	b.hub.Open()
	b.must(<-done)
	b.holds("hf://o/r/m.gguf", content)
}

func TestExpiredSignaturesAreRenewed(t *testing.T) {
	b := start(t, func(c *weights.Config) { c.Ranges = 1 })
	content := noise(5, 300<<10)
	b.hub.Put("o/r", "m.gguf", content)
	b.hub.Shut()
	done := b.later(t.Context(), "hf://o/r/m.gguf")
	b.hub.AwaitReads(1)
	b.hub.Expire()
	b.hub.Open()
	b.must(<-done)
	b.holds("hf://o/r/m.gguf", content)
}

// Bytes that are not those promised never become an entry; a sum of the catalog goes before the source's.
func TestChecksumMismatchFailsThePull(t *testing.T) {
	b := start(t)
	content := noise(6, 200<<10)
	b.hub.Put("o/r", "large.gguf", content)
	b.hub.PutSmall("o/r", "small.json", content[:100])
	for _, path := range []string{"large.gguf", "small.json"} {
		b.must(b.cache.Pull(t.Context(), place("hf://o/r/"+path+"@v1")))
		b.hub.Damage("o/r", path)
		if e := b.fails("hf://o/r/"+path, weights.ErrDigest); !strings.HasSuffix(e.Message(), path) {
			t.Error(e.Message())
		}
	}
	if left := b.left(); len(left) != 4 {
		t.Errorf("left %v", left)
	}
	b.hub.Put("o/r", "large.gguf", content)
	sum := sha256.Sum256(content)
	own := place("hf://o/r/large.gguf")
	own.SHA256 = hex.EncodeToString(make([]byte, 32))
	if err := b.cache.Pull(t.Context(), own); !errors.Is(err, weights.ErrDigest) {
		t.Errorf("a wrong sum of the catalog: %v", err)
	}
	own.SHA256 = hex.EncodeToString(sum[:])
	b.must(b.cache.Pull(t.Context(), own))
	if _, there := b.cache.Path(own); !there {
		t.Error("not there")
	}
	wrong := own
	wrong.SHA256 = hex.EncodeToString(make([]byte, 32))
	if _, there := b.cache.Path(wrong); there {
		t.Error("there under another sum")
	}

	b.cache.Close()
	b.cfg.Dir = t.TempDir()
	b.open()
	b.hub.Shut()
	first, reads := make(chan error, 1), len(b.hub.Reads())
	go func() { first <- b.cache.Pull(t.Context(), wrong) }()
	b.hub.AwaitReads(reads + 1)
	time.AfterFunc(100*time.Millisecond, b.hub.Open)
	if err := b.cache.Pull(t.Context(), own); err != nil {
		t.Errorf("the right sum, while a pull with a wrong one was in progress: %v", err)
	}
	if err := <-first; !errors.Is(err, weights.ErrDigest) {
		t.Error(err)
	}
}

func TestRefusedPullsHaveTheirKind(t *testing.T) {
	b := start(t)
	b.hub.Put("o/r", "m.gguf", noise(7, 1000))
	b.hub.Put("o/r", "a-Q4.gguf", noise(7, 1000))
	b.hub.Put("o/r", "m-00001-of-00002.gguf", noise(7, 1000))
	for _, c := range []struct {
		text string
		want error
		note string
	}{
		{"hf://o/none/m.gguf", weights.ErrNotFound, "status 404 RepoNotFound"},
		{"hf://o/r/none.gguf", weights.ErrNotFound, "status 404 EntryNotFound"},
		{"hf://o/r/m.gguf@v9", weights.ErrNotFound, "status 404 RevisionNotFound"},
		{"hf://o/r/m-00001-of-00002.gguf", weights.ErrNotFound, "status 404 EntryNotFound"},
		{"hf://o/r", weights.ErrUnclear, "name one of its 3 GGUF files, such as a-Q4.gguf"},
		{"s3://b/k", weights.ErrUnclear, "this runner cannot fetch from s3://"},
	} {
		if e := b.fails(c.text, c.want); e.Note != c.note {
			t.Errorf("%s: note %q, want %q", c.text, e.Note, c.note)
		}
	}
	if e := b.fails("hf://o/r/none.gguf", weights.ErrNotFound); !strings.Contains(e.Error(), b.hub.URL+"/o/r/") {
		t.Errorf("the log is not told where: %v", e)
	}
	b.hub.Refuse("m.gguf", http.StatusForbidden, "AccessDenied")
	b.fails("hf://o/r/m.gguf", weights.ErrDenied)

	b.hub.Private()
	stranger, err := hf.New(b.hub.URL, "")
	b.must(err)
	defer stranger.Close()
	b.cfg.Sources[catalog.SchemeHF] = stranger
	if e := b.fails("hf://o/r/m.gguf", weights.ErrDenied); e.Note != "status 401 GatedRepo; it needs a token (HF_TOKEN), or does not exist" {
		t.Error(e.Note)
	}
	if left := b.left(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// All shards of a split file, whichever is named; a repository that was renamed; a whole repository and a folder of
// it.
func TestAllNeededFilesArePulled(t *testing.T) {
	b := start(t)
	part := func(i int) string { return "q/m-0000" + string(rune('0'+i)) + "-of-00003.gguf" }
	for i := 1; i <= 3; i++ {
		b.hub.Put("new/r", part(i), noise(uint64(10+i), 70_000))
	}
	h, err := b.cache.Hold(t.Context(), place("hf://old/r/"+part(2)))
	b.must(err)
	defer h.Release()
	if filepath.Base(h.Path) != filepath.Base(part(1)) {
		t.Errorf("the engine gets %s, want the first shard", h.Path)
	}
	for i := 1; i <= 3; i++ {
		got, err := os.ReadFile(filepath.Join(filepath.Dir(h.Path), filepath.Base(part(i))))
		if err != nil || !slices.Equal(got, noise(uint64(10+i), 70_000)) {
			t.Errorf("shard %d: %d bytes, %v", i, len(got), err)
		}
	}

	for _, f := range []string{"config.json", "tokenizer/vocab.txt", ".gitattributes", "sub/.hidden", "README.md"} {
		b.hub.PutSmall("o/st", f, []byte(f))
	}
	for _, f := range []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "pytorch_model.bin", "onnx/model.onnx"} {
		b.hub.Put("o/st", f, []byte(f))
	}
	b.hub.Put("o/st", "onnx/other/model.data", []byte("x"))
	repo, err := b.cache.Hold(t.Context(), place("hf://o/st@v1"))
	b.must(err)
	defer repo.Release()
	sub, err := b.cache.Hold(t.Context(), place("hf://o/st/tokenizer"))
	b.must(err)
	defer sub.Release()
	if raw, err := os.ReadFile(filepath.Join(repo.Path, "tokenizer", "vocab.txt")); string(raw) != "tokenizer/vocab.txt" {
		t.Error(err)
	}
	if raw, err := os.ReadFile(filepath.Join(sub.Path, "vocab.txt")); string(raw) != "tokenizer/vocab.txt" {
		t.Error(err)
	}
	var names []string
	for _, path := range b.left() {
		if rest, ok := strings.CutPrefix(path, filepath.Base(repo.Path)+"/"); ok {
			names = append(names, rest)
		}
	}
	if got := strings.Join(names, " "); got != ".weights.json README.md config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors onnx/other/model.data tokenizer/vocab.txt" {
		t.Error(got)
	}
}

// Many want one location, some leave: it is fetched once, to its end.
func TestConcurrentPullsShareOneTransfer(t *testing.T) {
	b := start(t)
	content := noise(8, 300<<10)
	b.hub.Put("o/r", "m.gguf", content)
	b.hub.Shut()
	ctx, leave := context.WithCancel(t.Context())
	var leavers, stayers []<-chan error
	for range 4 {
		leavers = append(leavers, b.later(ctx, "hf://o/r/m.gguf"))
		stayers = append(stayers, b.later(t.Context(), "hf://o/r/m.gguf"))
	}
	b.until("some bytes", func() bool {
		got, size := b.cache.Progress(place("hf://o/r/m.gguf"))
		return got > 0 && got < size && size == int64(len(content))
	})
	leave()
	for _, l := range leavers {
		if err := <-l; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	b.hub.Open()
	for _, s := range stayers {
		b.must(<-s)
	}
	if n := len(b.hub.Reads()); n != 5 {
		t.Errorf("%d reads", n)
	}

	b.hub.Put("o/r", "n.gguf", content)
	b.hub.Shut()
	closed := b.later(t.Context(), "hf://o/r/n.gguf")
	b.hub.AwaitReads(6)
	b.cache.Close() // ends what is under way
	if err := <-closed; err == nil {
		t.Error("a pull outlived its cache")
	}
	b.open()
}

// The first place that fails ends the pull of the others.
func TestPullOfSeveralLocations(t *testing.T) {
	b := start(t)
	b.hub.Put("o/r", "m.gguf", noise(9, 1000))
	b.hub.Put("o/r", "mmproj.gguf", noise(10, 2000))
	both := []weights.Location{place("hf://o/r/m.gguf"), place("hf://o/r/mmproj.gguf")}
	b.must(b.cache.Pull(t.Context(), both...))
	if got, size := b.cache.Progress(both...); got != 3000 || size != 3000 {
		t.Errorf("%d of %d", got, size)
	}
	if err := b.cache.Pull(t.Context(), both[0], place("hf://o/r/none")); !errors.Is(err, weights.ErrNotFound) {
		t.Error(err)
	}
}

const killedEnv = "REVEILLE_TEST_KILLED_PULL"

// beKilled pulls from a hub that stops in the middle, for a test that kills this process.
func beKilled(dir string) {
	src, err := hf.New(os.Getenv(killedEnv+"_HUB"), "")
	if err != nil {
		os.Exit(2)
	}
	c, err := weights.Open(weights.Config{
		Dir: dir, Margin: 1, Range: 64 << 10, Ranges: 1, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: src},
	})
	if err != nil {
		os.Exit(2)
	}
	_ = c.Pull(context.Background(), place("hf://o/r/m.gguf"))
	os.Exit(3) // not reached
}

// The next process continues a pull whose process was killed.
func TestKilledPullIsContinued(t *testing.T) {
	const ranges = 64
	b := start(t)
	content := noise(11, ranges*b.cfg.Range)
	b.hub.Put("o/r", "m.gguf", content)
	b.hub.Shut()
	b.cache.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedEnv+"="+b.cfg.Dir, killedEnv+"_HUB="+b.hub.URL)
	cmd.Stderr = os.Stderr
	b.must(cmd.Start())
	b.hub.AwaitReads(1)
	if _, err := weights.Open(b.cfg); !errors.Is(err, weights.ErrInUse) {
		t.Errorf("a second owner: %v", err)
	}
	b.hub.Open()
	b.until("some ranges", func() bool { return strings.Contains(b.progress(), "\n0 ") })
	b.must(cmd.Process.Kill())
	_ = cmd.Wait()
	b.open()
	if _, there := b.cache.Path(place("hf://o/r/m.gguf")); there {
		t.Error("half a file counts")
	}
	before := len(b.hub.Reads())
	b.holds("hf://o/r/m.gguf", content)
	if again := len(b.hub.Reads()) - before; again > ranges-1 {
		t.Errorf("%d of %d ranges were read again", again, ranges)
	}
	if left := b.left(); len(left) != 2 {
		t.Errorf("left %v", left)
	}

	// What has arrived of another version of the file does not count.
	b.hub.Put("o/r", "n.gguf", content)
	b.hub.Shut()
	half := b.later(t.Context(), "hf://o/r/n.gguf")
	b.hub.AwaitReads(len(b.hub.Reads()) + 1)
	b.cache.Close()
	<-half
	b.hub.Open()
	b.hub.Put("o/r", "n.gguf", content[1:])
	b.open()
	b.holds("hf://o/r/n.gguf", content[1:])
}

// progress is what the record of an unfinished pull says.
func (b *bench) progress() string {
	b.Helper()
	found, _ := filepath.Glob(filepath.Join(b.cfg.Dir, ".pulling", "*", ".progress"))
	if len(found) != 1 {
		return ""
	}
	raw, _ := os.ReadFile(found[0])
	return string(raw)
}
