package weights_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/runner/weights"
	"reveille/runner/weights/hf"
	"reveille/testenv/hub"
	"reveille/testenv/kit"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedEnv); dir != "" {
		beKilled(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// bench is a cache over a hub.
type bench struct {
	*testing.T
	hub   *hub.Hub
	cache *weights.Cache
	cfg   weights.Config
	log   kit.Buffer
}

// start makes a bench whose ranges are small, so that small files have many.
func start(t *testing.T, change ...func(*weights.Config)) *bench {
	t.Helper()
	b := &bench{T: t, hub: hub.Start(t)}
	src, err := hf.New(b.hub.URL, hub.Token)
	b.must(err)
	b.cfg = weights.Config{
		Dir: t.TempDir(), Margin: 1, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: src}, Range: 64 << 10, Ranges: 4, Pause: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&b.cfg)
	}
	b.open()
	t.Cleanup(func() {
		b.cache.Close()
		src.Close()
		b.noSecrets(b.log.String())
	})
	return b
}

func (b *bench) open() {
	b.Helper()
	var err error
	b.cache, err = weights.Open(b.cfg)
	b.must(err)
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) noSecrets(text string) {
	b.Helper()
	for _, secret := range []string{hub.Token, hub.Signature} {
		if strings.Contains(text, secret) {
			b.Errorf("a secret is in: %s", text)
		}
	}
}

// fails pulls what cannot be, and returns the error for clients.
func (b *bench) fails(text string, want error) *weights.Error {
	b.Helper()
	err := b.cache.Pull(b.Context(), place(text))
	var e *weights.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		b.Fatalf("%s: %v, want %v", text, err, want)
	}
	if e.Location != text || !strings.HasPrefix(e.Message(), text+": ") || strings.Contains(e.Message(), "http") || strings.Contains(e.Message(), b.cfg.Dir) {
		b.Errorf("message %q of %+v", e.Message(), e)
	}
	b.noSecrets(err.Error())
	return e
}

// holds reads a file of a location through a hold.
func (b *bench) holds(text string, want []byte) {
	b.Helper()
	h, err := b.cache.Hold(b.Context(), place(text))
	b.must(err)
	defer h.Release()
	got, err := os.ReadFile(h.Path)
	b.must(err)
	if !bytes.Equal(got, want) {
		b.Errorf("%s: %d bytes, want %d others", text, len(got), len(want))
	}
}

// left lists all files of the cache but its lock.
func (b *bench) left() []string {
	b.Helper()
	var out []string
	b.must(filepath.WalkDir(b.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(b.cfg.Dir, path); err == nil && !d.IsDir() && rel != ".lock" {
			out = append(out, filepath.ToSlash(rel))
		}
		return err
	}))
	return out
}

func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	kit.Eventually(b, what, ok)
}

func place(text string) weights.Location {
	return weights.Location{Checkpoint: catalog.ParseCheckpoint(text)}
}

// noise is n bytes that depend on a seed alone.
func noise[N int | int64](seed uint64, n N) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	out := make([]byte, n)
	_, _ = r.Read(out)
	return out
}

// later starts a pull and reports how it ends.
func (b *bench) later(ctx context.Context, text string) <-chan error {
	out := make(chan error, 1)
	go func() { out <- b.cache.Pull(ctx, place(text)) }()
	return out
}
