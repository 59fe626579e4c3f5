package ui

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hubOf makes a hub whose pool never says that it changes, and counts the looks at it.
func hubOf(ctx context.Context, looks *atomic.Int64, changed func() <-chan struct{}) *Hub {
	return NewHub(ctx, HubConfig{
		MaxViewers: 10, MaxPerKey: 3, Pace: 500 * time.Millisecond, Every: time.Second, Changed: changed, Now: func() int64 { return 7 },
		Build: func() (n Update) {
			n[FeedPool], n[FeedModels], n[FeedNotes] = fmt.Appendf(nil, `{"look":%d}`, looks.Add(1)), []byte("[]"), []byte(`{"secret":1}`)
			return n
		},
	})
}

var noViewers [sha256.Size]byte

// The viewers of one key leave room for those of others.
func TestViewersOfOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var looks atomic.Int64
		h := hubOf(ctx, &looks, never)
		one, other := sha256.Sum256([]byte("one")), sha256.Sum256([]byte("other"))
		var all []*Viewer
		join := func(key [sha256.Size]byte) error {
			v, err := h.Join(key, false)
			if err == nil {
				all = append(all, v)
			}
			return err
		}
		for range 3 {
			if err := join(one); err != nil {
				t.Fatal(err)
			}
		}
		if err := join(one); !errors.Is(err, ErrFull) {
			t.Errorf("a fourth viewer of a key: %v", err)
		}
		if err := join(other); err != nil {
			t.Errorf("another key's viewer: %v", err)
		}
		all[0].Leave()
		if err := join(one); err != nil {
			t.Errorf("after one has left: %v", err)
		}
		for _, v := range all[1:] {
			v.Leave()
		}
		if len(h.byKey) != 0 {
			t.Errorf("%d keys are kept without viewers", len(h.byKey))
		}
		end()
		h.Wait()
	})
}

func never() <-chan struct{} { return nil }

// Any number of viewers cost what one does, and none costs nothing.
func TestOneProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var looks atomic.Int64
		h := hubOf(ctx, &looks, never)
		time.Sleep(time.Minute)
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks without a viewer", n)
		}
		var all []*Viewer
		for range 10 {
			v, err := h.Join(noViewers, false)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, v)
		}
		if _, err := h.Join(noViewers, false); !errors.Is(err, ErrFull) {
			t.Errorf("an eleventh viewer: %v", err)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		if n := looks.Load(); n != 11 {
			t.Errorf("%d looks in ten seconds", n)
		}
		for _, v := range all { // whoever has not read gets only the newest
			text, more := v.Next(ctx, nil, time.Second)
			if want := "event: pool\ndata: {\"at\":7,\"view\":{\"look\":11}}\n\nevent: models\ndata: {\"at\":7,\"view\":[]}\n\n"; string(text) != want || !more {
				t.Errorf("%q, want %q", text, want)
			}
			v.Leave()
		}
		time.Sleep(2 * time.Second)
		before := looks.Load()
		time.Sleep(time.Minute)
		if n := looks.Load(); n != before {
			t.Errorf("%d looks after the last viewer has left", n-before)
		}
		v, err := h.Join(noViewers, true)
		if err != nil {
			t.Fatal(err)
		}
		if text, _ := v.Next(ctx, nil, time.Second); !strings.Contains(string(text), "event: notes\n") || strings.Contains(string(text), `"look":11`) {
			t.Errorf("a manager sees %q", text)
		}
		if text, more := v.Next(ctx, nil, time.Millisecond); len(text) != 0 || !more {
			t.Errorf("nothing new: %q", text)
		}
		end()
		if _, more := v.Next(ctx, nil, time.Hour); more {
			t.Error("the stream goes on")
		}
		h.Wait()
	})
}

// A pool that changes all the time is looked at twice a second.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		always := make(chan struct{})
		close(always)
		var looks atomic.Int64
		h := hubOf(ctx, &looks, func() <-chan struct{} { return always })
		v, err := h.Join(noViewers, false)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		if n := looks.Load(); n != 21 {
			t.Errorf("%d looks in ten seconds", n)
		}
		v.Leave()
		end()
		h.Wait()
	})
}
