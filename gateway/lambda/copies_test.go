package lambda

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCopies(t.TempDir(), 5*time.Minute)
		text, reads, broken := "one", 0, error(nil)
		path := c.Keep("keys", func(context.Context) ([]byte, error) { reads++; return []byte(text), broken })
		refresh := func(what string, changed, fails bool, readsNow int, content string) {
			t.Helper()
			got, err := c.Refresh(t.Context())
			if got != changed || (err != nil) != fails {
				t.Errorf("%s: changed %v, %v", what, got, err)
			}
			if on, _ := os.ReadFile(path); string(on) != content || reads != readsNow {
				t.Errorf("%s: %q after %d reads, want %q after %d", what, on, reads, content, readsNow)
			}
		}
		broken = errors.New("nobody there")
		refresh("at first nothing", false, true, 1, "")
		broken = nil
		refresh("then all", true, false, 2, "one")
		text = "two"
		refresh("at once again", false, false, 2, "one")
		time.Sleep(5 * time.Minute)
		refresh("when it is old", true, false, 3, "two")
		time.Sleep(5 * time.Minute)
		refresh("without a change", false, false, 4, "two")
		time.Sleep(5 * time.Minute)
		text, broken = "three", errors.New("away")
		refresh("what cannot be read stays", false, true, 5, "two")
		refresh("and its source is left in peace", false, false, 5, "two")
		time.Sleep(30 * time.Second)
		broken = nil
		refresh("for a while", true, false, 6, "three")
	})
}

func TestCopiesThatCannotBeWritten(t *testing.T) {
	c := NewCopies(t.TempDir()+"/none", time.Minute)
	c.Keep("a", func(context.Context) ([]byte, error) { return nil, nil })
	if changed, err := c.Refresh(t.Context()); changed || err == nil {
		t.Error(changed, err)
	}
}
