package mmcache

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/engine"
	"reveille/runner/sandbox"
	"reveille/testenv"
)

// cFlags are the Makefile's flags.
var cFlags = []string{"-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"}

// compile builds a shared library or program from C files, with flags in addition to cFlags.
func compile(t testing.TB, out string, flags []string, sources ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	args := append(append(append([]string{}, cFlags...), flags...), "-o", out)
	for _, s := range sources {
		files, err := filepath.Glob(s)
		if err != nil || len(files) == 0 {
			t.Fatalf("no file %s", s)
		}
		args = append(args, files...)
	}
	if text, err := exec.Command(cc, append(args, "-ldl")...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, text)
	}
	return out
}

// library builds the interposer once and returns its path.
func library(t testing.TB) string {
	t.Helper()
	libraryOnce.Do(func() {
		dir, err := os.MkdirTemp("", "mm")
		if err != nil {
			t.Fatal(err)
		}
		libraryPath = compile(t, filepath.Join(dir, LibraryName), []string{"-shared"}, "interpose/*.c")
	})
	if libraryPath == "" {
		t.Skip("the interposer was not built")
	}
	return libraryPath
}

var (
	libraryOnce sync.Once
	libraryPath string // removed by TestMain
)

// socketDir returns a folder with a path short enough for sockets.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func redisClient(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newServer returns a server whose waits allow for a slow machine.
func newServer(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	c := Config{
		Pool: "main", Secret: []byte("runner secret"), Dir: socketDir(t), Log: slog.New(slog.DiscardHandler),
		LookupWait: 5 * time.Second, EncodeWait: 60 * time.Second,
	}
	if change != nil {
		change(&c)
	}
	s := New(c)
	t.Cleanup(s.Close)
	return s
}

func visionModels(t testing.TB) (gemma, tiny *catalog.Model) {
	m := testenv.Models(t)
	return &catalog.Model{ID: "gemma-3-270m-vision", Checkpoint: m.Gemma, MMProj: m.GemmaVision, Type: policy.LLM, MMCache: catalog.ShareAll},
		&catalog.Model{ID: "tiny-vision", Checkpoint: m.Tiny, MMProj: m.TinyVision, Type: policy.LLM, MMCache: catalog.ShareAll}
}

// llama is a llama-server, attached to a cache or not.
type llama struct {
	t      testing.TB
	p      *engine.Process
	a      *Attachment
	tokens int // in each response
}

// startLlama starts the pinned engine, uncached if s is nil.
func startLlama(t testing.TB, m *catalog.Model, s *Server, args string) *llama {
	t.Helper()
	r := recipe.Shipped()["llamacpp"]
	spec := engine.Spec{
		Recipe: r, Program: testenv.Engines(t).LlamaServer, Model: m.ID, Checkpoint: m.Checkpoint, MMProj: m.MMProj,
		Type: m.Type, Devices: policy.CPU, Options: recipe.Options{"ctx_size": int64(4096), "llamacpp_args": args},
	}
	l := &llama{t: t, tokens: 6}
	if s != nil {
		s.cfg.Library = library(t)
		argv, err := engine.Argv(spec)
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Attach(m, Encoder{Projector: m.MMProj, Program: spec.Program, Argv: argv})
		if err != nil {
			t.Fatal(err)
		}
		l.a, spec.Env = a, a.Env()
	}
	box, err := sandbox.New(sandbox.Config{Mode: sandbox.Auto, Memory: 8 << 30, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	sp := engine.NewSpawner(box)
	p, err := engine.Start(t.Context(), spec, engine.Config{Logger: slog.New(slog.DiscardHandler), Spawner: sp, Environ: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	l.p = p
	t.Cleanup(func() {
		l.stop()
		sp.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.EnsureReady(ctx); err != nil {
		t.Fatal(err)
	}
	if l.a != nil {
		l.a.Started()
	}
	return l
}

func (l *llama) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := l.p.Kill(ctx); err != nil {
		l.t.Errorf("Kill: %v", err)
	}
	if l.a != nil {
		l.a.Detach()
	}
}

func (l *llama) log() string {
	var b strings.Builder
	for _, line := range l.p.Log().Tail(400) {
		b.WriteString(line.Text + "\n")
	}
	return b.String()
}

type answerTokens struct {
	Tokens []struct {
		Token   string  `json:"token"`
		Logprob float64 `json:"logprob"`
	}
}

// ask sends media and returns the greedy tokens with their probabilities.
func (l *llama) ask(media ...[]byte) (answerTokens, error) {
	var out answerTokens
	content := []any{map[string]any{"type": "text", "text": "Look:"}}
	for _, m := range media {
		content = append(content, testenv.MediaPart(m))
	}
	body, err := json.Marshal(map[string]any{
		"messages":    []any{map[string]any{"role": "user", "content": content}},
		"temperature": 0, "max_tokens": l.tokens, "logprobs": true, "cache_prompt": false, "ignore_eos": true,
	})
	if err != nil {
		return out, err
	}
	text, err := l.call("/v1/chat/completions", body)
	if err != nil {
		return out, err
	}
	var got struct {
		Choices []struct {
			Logprobs struct {
				Content json.RawMessage `json:"content"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(text, &got); err != nil || len(got.Choices) != 1 {
		return out, fmt.Errorf("%w: %s", err, text)
	}
	return out, json.Unmarshal(got.Choices[0].Logprobs.Content, &out.Tokens)
}

// call posts a body, or gets a path if there is none.
func (l *llama) call(path string, body []byte) ([]byte, error) {
	method := http.MethodPost
	if body == nil {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(l.t.Context(), method, l.p.BaseURL()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+l.p.APIKey())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return text, err
}

func (l *llama) mustAsk(media ...[]byte) answerTokens {
	l.t.Helper()
	a, err := l.ask(media...)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, l.log())
	}
	if len(a.Tokens) == 0 {
		l.t.Fatal("no tokens")
	}
	return a
}

// counts checks what the attachment has counted since the last call.
func (l *llama) counts(what string, hits, misses int64, before *[2]int64) {
	l.t.Helper()
	h, m := l.a.Counts()
	if h-before[0] != hits || m-before[1] != misses {
		l.t.Errorf("%s: hits %d, misses %d; want %d, %d\n%s", what, h-before[0], m-before[1], hits, misses, l.log())
	}
	*before = [2]int64{h, m}
}
