package state_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/state"
)

// TestLargeEvents checks that events larger than any of the pool's own are not read. The subscription starts again,
// with its usual "sync", and the log reports it once.
func TestLargeEvents(t *testing.T) {
	onBoth(t, largeEvents)
	t.Run("cluster", func(t *testing.T) { largeEvents(oneNode(t)) })
}

func largeEvents(b *bench) {
	t := b.t
	var log bytes.Buffer
	s := b.open(state.Options{URL: b.url, Log: slog.New(slog.NewTextHandler(&log, nil))})
	events := make(chan state.Event, 16)
	next := func(kind string) {
		select {
		case e := <-events:
			equal(t, "kind of event", e.Kind, kind)
		case <-time.After(15 * time.Second):
			t.Fatal("no event of kind " + kind)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	listening.Go(func() { s.Listen(ctx, "", func(e state.Event) { events <- e }) })
	publish := func(kind string, size int) {
		must(t, b.rdb.Publish(ctx, prefix+"events", `{"kind":"`+kind+`","reason":"`+strings.Repeat("x", size)+`"}`).Err())
	}
	next("sync")
	for range 3 {
		publish("small", 900<<10)
		next("small")
		publish("large", 1<<20)
		next("sync")
	}
	publish("small", 0)
	next("small")
	equal(t, "lines of the log", strings.Count(log.String(), "an event announces more than"), 1)
}
