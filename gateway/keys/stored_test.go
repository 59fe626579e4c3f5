package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"reveille/gateway/quota"
)

func hexOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// A stored key counts beside those of the file, and a revoked one never again, whatever Redis holds later.
func TestStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "file manage\n")
	s, err := Open(path, "root", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	scopes := func(key string) Scopes { return s.Find([]byte(key)).Scopes }
	table := map[string]string{hexOf("a"): "infer requests=1/h Ann", hexOf("b"): "infer,manage", hexOf("file"): "infer", hexOf("c"): "everything", "short": "infer"}
	if err := s.SetStored(table); err == nil || strings.Contains(err.Error(), "everything") {
		t.Errorf("an entry that is not valid: %v", err)
	}
	account := s.Find([]byte("a")).Account
	if scopes("a") != Infer || scopes("b") != Infer|Manage || scopes("file") != Manage || scopes("root") != Infer|Manage || scopes("c") != 0 {
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
	if err := s.SetStored(nil); err != nil || scopes("a") != 0 || scopes("file") != Manage {
		t.Error("an empty table:", err)
	}
}

// A file that cannot be read or is not valid, as while somebody writes it, holds up nothing that Redis says: keys that are revoked
// there end, and those of the file stay.
func TestStoredBesideABrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "file manage\n")
	s, err := Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	scopes := func(key string) Scopes { return s.Find([]byte(key)).Scopes }
	for _, spoil := range []func(){
		func() { write(t, path, "file infer\nann infer requests=many\n") },
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
		if err != nil || scopes("stolen") != 0 || scopes("new") != Infer || scopes("file") != Manage || scopes("ann") != 0 {
			t.Errorf("%v: stolen %v, new %v, file %v, ann %v", err, scopes("stolen"), scopes("new"), scopes("file"), scopes("ann"))
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
		if CheckStored(hexOf("a"), bad) == nil {
			t.Errorf("%.20s may be stored", bad)
		}
	}
	if CheckStored("abc", "infer") == nil || CheckStored(hexOf("a"), "infer Ann") != nil {
		t.Error("the digest is not checked, or a good entry is refused")
	}
}
