package httpapi

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"reveille/runner/host"
)

// one is an engine that is only compared.
type one struct{ host.Engine }

// Done is never closed.
func (*one) Done() <-chan struct{} { return nil }

func TestBadReplies(t *testing.T) {
	t0 := time.Unix(1_700_000_000, 0)
	for name, tc := range map[string]struct {
		after  []time.Duration // the first
		shared bool
		want   string // + where it is too many
	}{
		"three in a minute":         {after: []time.Duration{0, time.Second, 59 * time.Second}, want: "--+"},
		"three in more":             {after: []time.Duration{0, time.Second, 60 * time.Second}, want: "---"},
		"the last three count":      {after: []time.Duration{0, 50 * time.Second, 70 * time.Second, 80 * time.Second}, want: "---+"},
		"from the start after it":   {after: []time.Duration{0, 0, 0, 0, 0, 0}, want: "--+--+"},
		"one answer of many":        {after: []time.Duration{0, 0, 0, 999 * time.Millisecond}, shared: true, want: "----"},
		"several answers of many":   {after: []time.Duration{0, 0, 2 * time.Second, 2 * time.Second, 4 * time.Second}, shared: true, want: "----+"},
		"with another engine's own": {after: []time.Duration{0, 0}, want: "--"},
	} {
		w := newWatchdog(nil, slog.New(slog.DiscardHandler), nil, time.Second)
		e, other := &one{}, &one{}
		w.badReply(other, t0, false)
		got := ""
		for _, after := range tc.after {
			if w.badReply(e, t0.Add(after), tc.shared) {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		if w.badReply(e, t0.Add(time.Hour), false); len(w.bad) != 1 {
			t.Errorf("%s: %d engines are remembered after an hour", name, len(w.bad))
		}
		w.close()
	}
}

// The time that an engine's loop may take for an iteration follows from its requests' input. An abandoned request
// counts until the loop must have dropped it.
func TestIterationOfALoop(t *testing.T) {
	const second = time.Second
	for _, tc := range []struct {
		give []load
		want time.Duration
	}{
		{nil, 30 * second},
		{[]load{{bytes: 1 << 10}}, 45 * second},
		{[]load{{bytes: 1 << 10}, {bytes: 3 << 10}}, 90 * second},
		{[]load{{bytes: 64 << 20}}, 240 * second},
		{[]load{{bytes: 1 << 40}}, 240 * second},
		{[]load{{bytes: 100, media: 1}}, 600 * second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatchdog(nil, slog.New(slog.DiscardHandler), nil, 120*second)
			defer w.close()
			e := &one{}
			given := func() load {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.loads[e]
			}
			for _, l := range tc.give {
				w.began("m", e, l)
			}
			if got := given().iteration(w.limit); got != tc.want {
				t.Errorf("%v: %v, want %v", tc.give, got, tc.want)
			}
			for i, l := range tc.give {
				w.ended(e, l, i > 0)
			}
			if len(tc.give) > 0 && given() != tc.give[0] {
				t.Errorf("%v: %v after the first was abandoned, the others answered", tc.give, given())
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if got := given(); got != (load{}) {
				t.Errorf("%v: %v in the end", tc.give, got)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	const limit = 120 * time.Second
	for _, tc := range []struct {
		prompt int
		stream bool
		want   time.Duration
	}{
		{0, true, limit}, {64 << 10, true, 2 * limit}, {10 << 20, true, LongAnswer * limit}, {0, false, LongAnswer * limit}, {10 << 20, false, LongAnswer * limit},
	} {
		if got := firstByteLimit(limit, tc.prompt, tc.stream); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

func TestFormOf(t *testing.T) {
	for path, want := range map[string]form{
		"/v1/chat/completions": proseForm, "/completions": proseForm, "/v1/messages": proseForm, "/v1/messages/count_tokens": jsonForm, "/v1/chat/completions/input_tokens": jsonForm,
		"/v2/rerank": jsonForm, "/v1/embeddings": jsonForm, "/v1/audio/speech": noPage, "/": anyForm, "/v1/models": anyForm, "/slots": anyForm,
		"/chat": anyForm, "/v1/chat/completions/more": anyForm,
	} {
		if got := formOf(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}
