package keys

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
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
	write(t, path, "# people\nplain-api-key\n\nboth-api-key infer,manage Ada\nsha256:"+hex.EncodeToString(sum[:])+" manage\n")
	s, err := Open(path, "root", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]Scopes{"plain-api-key": Infer, "both-api-key": Infer | Manage, "hashed": Manage, "root": Infer | Manage, "": 0, "#": 0, "nobody": 0} {
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
	write(t, path, "plain-api-key\nlow-api-key infer waiting=1 Lou requests=1/h\nbare-api-key open=1\n")
	s, err := Open(path, "root", quota.Limits{Waiting: 2})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"plain-api-key": 2, "low-api-key": 1, "bare-api-key": 2, "root": 2} {
		a := s.Find([]byte(key)).Account
		for n := range want + 1 {
			if err := a.BeginWait(); (err == nil) != (n < want) {
				t.Errorf("%s, %d waiting: %v", key, n+1, err)
			}
		}
	}
	if k := s.Find([]byte("bare-api-key")); k.Scopes != Infer || k.Account.Begin() != nil || k.Account.Begin() == nil {
		t.Error("a key with a limit and no scopes has no limit, or more scopes")
	}
	low := s.Find([]byte("low-api-key")).Account
	if err := errors.Join(low.Begin()); err != nil {
		t.Fatal(err)
	}
	write(t, path, "low-api-key infer requests=1/h waiting=3\n")
	s.Reload(slog.New(slog.DiscardHandler))
	again := s.Find([]byte("low-api-key")).Account
	if again != low || again.Begin() == nil || again.BeginWait() != nil {
		t.Error("an account was replaced or reset when the file was read again")
	}
	if s.Find([]byte("plain-api-key")).Account != nil {
		t.Error("a withdrawn key has an account")
	}
	for _, text := range []string{"", "low-api-key infer requests=1/h waiting=3\n"} { // as an editor does
		write(t, path, text)
		s.Reload(slog.New(slog.DiscardHandler))
	}
	if again := s.Find([]byte("low-api-key")).Account; again != low || again.Begin() == nil {
		t.Error("a key that came back has its limits again")
	}
}

func TestErrorsNameLinesWithoutKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "canary-key all\nsha256:12 infer\ncanary-3 infer canary open=0\ncanary-4 open=1 manage\ncanary-5 infer team=canary\n"+
		"canary-6 models:canary\ncanary-7 infer models=canary models=canaries\ncanary-8 model=canary\ncanary-9 infer rquests=60/m\n"+
		"canary-10 infer Ann expire=2030-01-31\n---------\n\"canary-12\"\nTODO\ncanary infer,manage\nfine-key infer Ann's laptop\n"+
		"sha256:"+hexOf("canary-17")+"\ncanary-17 manage\n")
	_, err := Open(path, "", quota.Limits{})
	if err == nil {
		t.Fatal("a file with mistakes was taken")
	}
	for line := 1; line <= 17; line++ {
		if named := strings.Contains(err.Error(), fmt.Sprintf("line %d:", line)); named != (line < 15) {
			t.Errorf("line %d named: %v", line, named)
		}
	}
	if !strings.Contains(err.Error(), "lines 16 and 17 ") {
		t.Errorf("a key on two lines: %v", err)
	}
	if strings.Contains(err.Error(), "canary") {
		t.Error("the error quotes a key")
	}
}

// Editors of Windows put a byte order mark at the start. A comment is none the less a comment, and a key a key.
func TestByteOrderMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "\ufeff# people\nann-api-key\n")
	s, err := Open(path, "", quota.Limits{})
	if err != nil || s.Find([]byte("ann-api-key")).Scopes != Infer || s.Find([]byte("\ufeff#")).Scopes != 0 {
		t.Error("a comment with a mark:", err)
	}
	write(t, path, "\ufeffann-api-key\n")
	if s, err = Open(path, "", quota.Limits{}); err != nil || s.Find([]byte("ann-api-key")).Scopes != Infer {
		t.Error("a key with a mark:", err)
	}
	write(t, path, "\xff\xfea\x00n\x00n\x00")
	if _, err = Open(path, "", quota.Limits{}); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Error("a file in UTF-16:", err)
	}
}

func TestWatchWithdrawsAKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "one-api-key\ntwo-api-key\n")
	s, err := Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Watch(ctx, 5*time.Millisecond, slog.New(slog.DiscardHandler)) }()
	write(t, path, "two-api-key\n")
	for deadline := time.Now().Add(10 * time.Second); s.Find([]byte("one-api-key")).Scopes != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the key is still valid")
		}
	}
	write(t, path, "two-api-key bad-scope\n")
	time.Sleep(30 * time.Millisecond)
	if s.Find([]byte("two-api-key")).Scopes != Infer {
		t.Error("a broken file must leave the keys as they are")
	}
	cancel()
	<-done
}

func TestFromAuthorization(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:k"))
	for auth, want := range map[string]string{"Bearer k": "k", "bearer  k ": "k", basic: "k", "Basic !": "", "k": "", "": ""} {
		if got := string(FromAuthorization([]byte(auth))); got != want {
			t.Errorf("FromAuthorization(%q) = %q, want %q", auth, got, want)
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

func hexOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// A stored key counts beside those of the file, and a revoked one never again, whatever Redis holds later.
func TestStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "file-api-key manage\n")
	s, err := Open(path, "root", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	scopes := func(key string) Scopes { return s.Find([]byte(key)).Scopes }
	table := map[string]string{hexOf("a"): "infer requests=1/h Ann", hexOf("b"): "infer,manage", hexOf("file-api-key"): "infer", hexOf("c"): "everything", "short": "infer"}
	if err := s.SetStored(table); err == nil || strings.Contains(err.Error(), "everything") {
		t.Errorf("an entry that is not valid: %v", err)
	}
	account := s.Find([]byte("a")).Account
	if scopes("a") != Infer || scopes("b") != Infer|Manage || scopes("file-api-key") != Manage || scopes("root") != Infer|Manage || scopes("c") != 0 {
		t.Error("stored keys, or those of the file, do not count")
	}
	before := map[string]string{hexOf("a"): table[hexOf("a")], hexOf("b"): table[hexOf("b")]}
	if err := s.SetStored(map[string]string{hexOf("a"): table[hexOf("a")], hexOf("b"): Revoked}); err != nil {
		t.Error(err)
	}
	if scopes("b") != 0 || s.Find([]byte("a")).Account != account {
		t.Error("a revoked key counts, or another one's account was replaced")
	}
	if err := s.SetStored(before); err != nil || scopes("b") != 0 {
		t.Error("a revoked key came back:", err)
	}
	if err := s.SetStored(nil); err != nil || scopes("a") != 0 || scopes("file-api-key") != Manage {
		t.Error("an empty table:", err)
	}
}

// A file that cannot be read or is not valid, as while somebody writes it, holds up nothing that Redis says: keys that
// are revoked there end, and those of the file stay.
func TestStoredKeysWithABrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "file-api-key manage\n")
	s, err := Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	scopes := func(key string) Scopes { return s.Find([]byte(key)).Scopes }
	for _, spoil := range []func(){
		func() { write(t, path, "file-api-key infer\nann-api-key infer requests=many\n") },
		func() { s.Reload(slog.New(slog.DiscardHandler)) },
		func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s.revoked = nil
		if err := s.SetStored(map[string]string{hexOf("stolen"): "infer"}); err != nil || scopes("stolen") != Infer {
			t.Fatal("a stored key does not count:", err)
		}
		spoil()
		err := s.SetStored(map[string]string{hexOf("stolen"): Revoked, hexOf("new"): "infer"})
		if err != nil || scopes("stolen") != 0 || scopes("new") != Infer || scopes("file-api-key") != Manage || scopes("ann-api-key") != 0 {
			t.Errorf("%v: stolen %v, new %v, file %v, ann %v", err, scopes("stolen"), scopes("new"), scopes("file-api-key"), scopes("ann-api-key"))
		}
	}
}

func TestModelsAndExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open("", "root", quota.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		if err := s.SetStored(map[string]string{hexOf("a"): "models=qwen*,org/*:q4,gemma expires=" + until}); err != nil {
			t.Fatal(err)
		}
		key, root := s.Find([]byte("a")), s.Find([]byte("root"))
		for model, want := range map[string]bool{"qwen": true, "qwen/3:8b": true, "gemma": true, "gemma-3": false, "org/x:q4": true, "org/x:q8": false, "": false} {
			if key.Allows(model) != want || !root.Allows(model) {
				t.Errorf("%q: %v", model, !want)
			}
		}
		time.Sleep(time.Hour - time.Second)
		if s.Find([]byte("a")).Scopes != Infer {
			t.Error("the key has expired early")
		}
		time.Sleep(time.Second)
		if s.Find([]byte("a")).Scopes != 0 {
			t.Error("the key has not expired")
		}
	})
}

// A key without cloud=yes may use no model in a cloud, whatever its models.
func TestCloud(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("with-cloud-1 infer cloud=yes\nno-cloud-22 infer models=*\nno-cloud-33 cloud=no\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(file, "admin-key-1", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetCloud(func(model string) bool { return model == "sky" })
	for key, want := range map[string]bool{"with-cloud-1": true, "no-cloud-22": false, "no-cloud-33": false, "admin-key-1": true} {
		k := s.Find([]byte(key))
		if k.Allows("sky") != want || !k.Allows("own") {
			t.Errorf("%s: cloud %v, want %v; its own %v", key, k.Allows("sky"), want, k.Allows("own"))
		}
		if err := k.MayGrant("infer cloud=yes"); (err == nil) != want {
			t.Errorf("%s grants it: %v", key, err)
		}
	}
	if _, err := parseGrant([]string{"cloud=maybe"}, quota.Limits{}); err == nil {
		t.Error("cloud=maybe is accepted")
	}
}

func TestListAndNamed(t *testing.T) {
	table := map[string]string{hexOf("a"): "infer expires=2020-01-01 Ann B", hexOf("b"): Revoked, hexOf("c"): "infer Cy", hexOf("d"): "infer Cy", "short": "infer"}
	list := List(table)
	if len(list) != 4 || list[1].Name != "Ann B" || !list[1].Expired || list[1].ID != hexOf("a")[:12] || !list[0].Revoked || list[2].Expired {
		t.Errorf("%+v", list)
	}
	for id, want := range map[string]int{"Ann B": 1, "Cy": 2, hexOf("a")[:12]: 1, strings.ToUpper(hexOf("c")): 1, hexOf("a")[:7]: 0, hexOf("b")[:12]: 0, "": 0, "short": 0} {
		if got := Matching(table, id); len(got) != want {
			t.Errorf("%s: %v, want %d", id, got, want)
		}
	}
	for _, bad := range []string{"nonsense", "infer models=[", "infer models=", "infer expires=soon", "infer tokens=5", "infer priority=normal", strings.Repeat("x ", 1000)} {
		if err := CheckStored(hexOf("a"), bad); err == nil {
			t.Errorf("%.20s may be stored", bad)
		}
	}
	if err := CheckStored("abc", "infer"); err == nil {
		t.Error("the digest is not checked")
	}
	if err := CheckStored(hexOf("a"), "manage Ann"); err != nil {
		t.Error("a good entry:", err)
	}
	for scopes, want := range map[Scopes]bool{Manage: true, Infer: false} {
		if err := (&Key{Scopes: scopes}).MayGrant("manage Ann"); (err == nil) != want {
			t.Errorf("a key with %b grants manage: %v", scopes, err)
		}
	}
}
