package conversations

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/engineslots"
	"reveille/testenv"
)

var secret = []byte("a secret of sixteen or more")

// openIn opens a host's store in a pool.
func openIn(t *testing.T, url, host string, bucket *Bucket) *Store {
	st, err := state.Open(state.Options{URL: url, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	s, err := Open(Config{
		Dir: t.TempDir(), Bytes: 64 << 20, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Pool: &Pool{Host: host, State: st, Signer: rpc.NewSigner(secret)},
		Bucket: bucket,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// answers is what a sister answers: a list, or a part from an offset.
type answers struct {
	list func([]Listed) []Listed
	part func(offset int64, body []byte) []byte
	sign func(proof string) string
	wait bool // does not answer
}

// serve answers as a runner does that has a store's conversations, but for what a changes.
func serve(t *testing.T, s *Store, a *answers, calls *atomic.Int32) string {
	verify := rpc.NewVerifier(secret)
	end := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		auth := r.Header.Get(rpc.HeaderAuth)
		if _, err := verify.Verify(auth, rpc.Call{Method: r.Method, Path: r.RequestURI, Host: "a"}, time.Now()); err != nil {
			t.Error(err)
		}
		if a.wait {
			<-end
			return
		}
		identity, name, one := strings.Cut(strings.TrimPrefix(r.URL.Path, rpc.PathConversations), "/")
		list := s.List(identity)
		if a.list != nil {
			list = a.list(list)
		}
		body, _ := json.Marshal(list)
		if one {
			offset, _ := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
			var ok bool
			if body, ok = s.Part(identity, name, offset); !ok {
				w.WriteHeader(http.StatusNotFound)
			}
			if a.part != nil {
				body = a.part(offset, body)
			}
		}
		proof := verify.Prove(auth, body)
		if a.sign != nil {
			proof = a.sign(proof)
		}
		w.Header().Set(rpc.HeaderProof, proof)
		_, _ = w.Write(body)
	}))
	t.Cleanup(func() { close(end); srv.Close() })
	return strings.TrimPrefix(srv.URL, "http://")
}

// A host gets the conversations of another one that has the same model, with their owners, and nothing else: not those
// of other files or flags, and nothing from a host that answers wrongly, which leaves nothing behind either.
func TestFetch(t *testing.T) {
	url := "redis://" + testenv.Redis(t)
	a := openIn(t, url, "a", nil)
	p := process(t, filepath.Join(t.TempDir(), "m.gguf"))
	owner, prompt := engineslots.TenantOf("ann"), engineslots.PromptOf(bytes.Repeat([]byte("a"), 1000))
	l := newLlama(t, 2)
	table := engineslots.New(2, nil)
	long := count(1, 2<<20) // more than a part
	run(t, a, p, l, table, func(*Engine) {
		l.slots[0], l.task[0] = long, 1
		table.Restored(0, owner, prompt)
	})
	pool := a.cfg.Pool.State
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if found, err := pool.Conversations(t.Context(), "m"); err == nil && len(found) == 1 && found["a"].Count == 1 && found["a"].Tokens == int64(len(long)) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("Redis has %v, %v", found, err)
		}
	}
	for name, c := range map[string]struct {
		answers
		flags   []string
		content string // of the model's file
		asleep  bool
		want    bool
		quiet   bool // the sister is not asked
		forgot  bool // here, but not at the sister
	}{
		"in order":                {want: true},
		"forgotten meanwhile":     {forgot: true},
		"another model file":      {content: "GGUf", quiet: true},
		"other flags":             {flags: []string{"--swa-full"}, quiet: true},
		"asleep":                  {asleep: true, quiet: true},
		"no answer":               {answers: answers{wait: true}},
		"not signed":              {answers: answers{sign: func(string) string { return "" }}},
		"signed otherwise":        {answers: answers{sign: func(p string) string { return strings.Repeat("0", len(p)) }}},
		"too much":                {answers: answers{part: func(_ int64, b []byte) []byte { return append(slices.Clone(b), 7) }}},
		"too little":              {answers: answers{part: func(_ int64, b []byte) []byte { return b[:len(b)-1] }}},
		"nothing":                 {answers: answers{part: func(int64, []byte) []byte { return nil }}},
		"far too much":            {answers: answers{part: func(int64, []byte) []byte { return make([]byte, 32<<20) }}},
		"another's identity":      {answers: answers{part: func(at int64, b []byte) []byte { return flipped(b, at == 0, 9) }}},
		"changed data":            {answers: answers{part: func(at int64, b []byte) []byte { return flipped(b, at > 0, len(b)-1) }}},
		"a long list":             {answers: answers{list: func(l []Listed) []Listed { return slices.Repeat(l, 5000) }}},
		"a name that leads away":  {answers: answers{list: func(l []Listed) []Listed { l[0].Name = "../x"; return l }}},
		"larger than the store":   {answers: answers{list: func(l []Listed) []Listed { l[0].Bytes = 65 << 20; return l }}},
		"of no size":              {answers: answers{list: func(l []Listed) []Listed { l[0].Bytes = 0; return l }}},
		"larger than it is":       {answers: answers{list: func(l []Listed) []Listed { l[0].Bytes++; return l }}},
		"quicker to compute anew": {answers: answers{list: func(l []Listed) []Listed { l[0].PromptMS = 1e-3; return l }}},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			addr := serve(t, a, &c.answers, &calls)
			generation, _, err := pool.Register(t.Context(), state.HostInfo{Name: "a", Boot: name, Addr: addr, Devices: "cpu"})
			if err != nil {
				t.Fatal(err)
			}
			if c.asleep {
				if err := pool.SetHostState(t.Context(), "a", generation, "asleep"); err != nil {
					t.Fatal(err)
				}
			}
			b := openIn(t, url, "b", nil)
			if c.forgot {
				b.Forget("m", now())
			}
			file := filepath.Join(t.TempDir(), "elsewhere.gguf")
			if c.content != "" {
				if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l, table := newLlama(t, 2), engineslots.New(2, nil)
			run(t, b, process(t, file, c.flags...), l, table, func(*Engine) {
				got := 0
				for i, tokens := range l.slots {
					if len(tokens) == 0 {
						continue
					}
					got++
					if who, what, ok := table.Held(i); !slices.Equal(tokens, long) || who != owner || what != prompt || !ok {
						t.Errorf("slot %d has %d tokens of %x", i, len(tokens), who)
					}
				}
				if (got == 1) != c.want || got > 1 {
					t.Errorf("%d conversations are restored", got)
				}
				if files := names(t, b.cfg.Dir); (len(files) == 1) != c.want || slices.ContainsFunc(files, func(n string) bool { return strings.Contains(n, unfinished) }) {
					t.Errorf("the store holds %v", files)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if !c.want && b.total != 0 {
					t.Errorf("%d bytes are counted", b.total)
				}
			})
			if n := calls.Load(); (n == 0) != c.quiet {
				t.Errorf("the other host was asked %d times", n)
			}
		})
	}
}

func flipped(b []byte, now bool, at int) []byte {
	b = slices.Clone(b)
	if now {
		b[at] ^= 1
	}
	return b
}
