package keys

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/gateway/quota"
)

// write replaces the file atomically, since a partly written file would be read as it is.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	sum := sha256.Sum256([]byte("hashed"))
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "# people\nplain\n\nboth infer,manage Ada\nsha256:"+hex.EncodeToString(sum[:])+" manage\n")
	s, err := Open(path, "root", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]Scopes{"plain": Infer, "both": Infer | Manage, "hashed": Manage, "root": Infer | Manage, "": 0, "#": 0, "nobody": 0} {
		if got := s.Find([]byte(key)).Scopes; got != want {
			t.Errorf("Scopes(%q) = %v, want %v", key, got, want)
		}
	}
	if !s.Configured() {
		t.Error("not configured")
	}
	if open, _ := Open("", "", quota.Limits{}); open.Configured() || open.Find([]byte("x")).Scopes != 0 {
		t.Error("a set without keys is open and knows no key")
	}
}

func TestLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "plain\nlow infer waiting=1 Lou requests=1/h\nbare open=1\n")
	s, err := Open(path, "root", quota.Limits{Waiting: 2})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"plain": 2, "low": 1, "bare": 2, "root": 2} {
		a := s.Find([]byte(key)).Account
		for n := range want + 1 {
			if err := a.BeginWait(); (err == nil) != (n < want) {
				t.Errorf("%s, %d waiting: %v", key, n+1, err)
			}
		}
	}
	if k := s.Find([]byte("bare")); k.Scopes != Infer || k.Account.Begin() != nil || k.Account.Begin() == nil {
		t.Error("a key with a limit and no scopes has no limit, or more scopes")
	}
	low := s.Find([]byte("low")).Account
	if err := errors.Join(low.Begin()); err != nil {
		t.Fatal(err)
	}
	write(t, path, "low infer requests=1/h waiting=3\n")
	s.Reload(slog.New(slog.DiscardHandler))
	again := s.Find([]byte("low")).Account
	if again != low || again.Begin() == nil || again.BeginWait() != nil {
		t.Error("an account was replaced or reset when the file was read again")
	}
	if s.Find([]byte("plain")).Account != nil {
		t.Error("a withdrawn key has an account")
	}
}

func TestMistakesNameLinesOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "canary-key all\nsha256:12 infer\nkey infer canary open=0\nkey open=1 manage\nfine infer team=canary\n")
	_, err := Open(path, "", quota.Limits{})
	if err == nil || !strings.Contains(err.Error(), "line 1") || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "line 3") || !strings.Contains(err.Error(), "line 4") || strings.Contains(err.Error(), "line 5") {
		t.Fatalf("error %v, want the first four lines named", err)
	}
	if strings.Contains(err.Error(), "canary") {
		t.Error("the error quotes a key")
	}
}

func TestWatchWithdrawsAKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "one\ntwo\n")
	s, err := Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Watch(ctx, 5*time.Millisecond, slog.New(slog.DiscardHandler)) }()
	write(t, path, "two\n")
	for deadline := time.Now().Add(10 * time.Second); s.Find([]byte("one")).Scopes != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the key is still valid")
		}
	}
	write(t, path, "two bad-scope\n")
	time.Sleep(30 * time.Millisecond)
	if s.Find([]byte("two")).Scopes != Infer {
		t.Error("a broken file must leave the keys as they are")
	}
	cancel()
	<-done
}

func TestFromHeaders(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:k"))
	for _, c := range []struct{ auth, api, want string }{
		{"Bearer k", "", "k"}, {"bearer  k ", "", "k"}, {"", "k", "k"}, {"Bearer x", "k", "k"}, {basic, "", "k"}, {"Basic !", "", ""}, {"k", "", ""}, {"", "", ""},
	} {
		if got := string(FromHeaders([]byte(c.auth), []byte(c.api))); got != c.want {
			t.Errorf("From(%q, %q) = %q, want %q", c.auth, c.api, got, c.want)
		}
	}
}

func TestNew(t *testing.T) {
	if a, b := New(), New(); a == b || len(a) != 46 || !strings.HasPrefix(a, "rv_") {
		t.Errorf("keys %q %q", a, b)
	}
}

// A file without keys, such as a secret that is still empty, lets nobody in.
func TestEmptyFileIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "# none yet\n")
	s, err := Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if !s.Configured() || s.Find(nil).Scopes != 0 || s.Find([]byte("any")).Scopes != 0 {
		t.Error("open without keys")
	}
}
