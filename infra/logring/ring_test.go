package logring

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func texts(lines []Line) []string {
	out := []string{}
	for _, l := range lines {
		out = append(out, l.Text)
	}
	return out
}

// The ring holds the last lines, numbered without gaps, whatever its size.
func TestRingTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, count, n := rapid.IntRange(1, 8).Draw(t, "size"), rapid.IntRange(0, 30).Draw(t, "count"), rapid.IntRange(-1, 12).Draw(t, "n")
		l := New(size)
		var all []string
		for i := range count {
			text := fmt.Sprint("line ", i)
			all = append(all, text)
			l.Append(text, time.Time{})
		}
		want := all[max(0, len(all)-size):]
		if n >= 0 {
			want = want[max(0, len(want)-n):]
		}
		got := l.Tail(n)
		if !slices.Equal(texts(got), want) {
			t.Fatalf("Tail(%d) = %q, want %q", n, texts(got), want)
		}
		for i, line := range got {
			if line.N != uint64(count-len(got)+i+1) {
				t.Fatalf("line %d has number %d", i, line.N)
			}
		}
	})
}

func TestRingSubscribe(t *testing.T) {
	l := New(0)
	l.Append("a", time.Time{})
	l.Append("b", time.Time{})
	past, next, cancel := l.Subscribe(1)
	l.Append("c", time.Time{})
	if got := texts(past); !slices.Equal(got, []string{"b"}) {
		t.Errorf("past = %q", got)
	}
	if line := <-next; line.Text != "c" || line.N != 3 {
		t.Errorf("next = %+v", line)
	}
	cancel()
	cancel() // harmless
	if _, open := <-next; open {
		t.Error("open after cancel")
	}

	_, slow, cancel := l.Subscribe(0)
	defer cancel()
	for range subscriberLines + 10 { // nobody reads: the engine is not held up
		l.Append("x", time.Time{})
	}
	l.Close()
	l.Append("after the end", time.Time{})
	var got int
	for range slow {
		got++
	}
	if got != subscriberLines {
		t.Errorf("a slow subscriber got %d lines, want %d", got, subscriberLines)
	}
	past, ended, cancel := l.Subscribe(1)
	cancel()
	if _, open := <-ended; open || texts(past)[0] != "x" {
		t.Error("a subscription after the end is not an ended one with the past")
	}
}

func TestRingConcurrently(t *testing.T) {
	l := New(16)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				l.Append("x", time.Time{})
				l.Tail(5)
			}
		})
		wg.Go(func() {
			for range 50 {
				_, _, cancel := l.Subscribe(3)
				cancel()
			}
		})
	}
	wg.Wait()
	l.Close()
	if got := l.Tail(1); got[0].N != 800 {
		t.Errorf("last line is number %d", got[0].N)
	}
}

func TestSplitter(t *testing.T) {
	var got []string
	s := Splitter{Emit: func(l string) { got = append(got, l) }}
	for _, part := range []string{"on", "e\ntwo\r\n\n 10%\r 20%\rthr", "ee\xff", "\n" + strings.Repeat("y", maxLine+1)} {
		s.Add([]byte(part))
	}
	s.Flush()
	want := []string{"one", "two", " 10%", " 20%", "three\uFFFD", strings.Repeat("y", maxLine), "y"}
	if !slices.Equal(got, want) {
		t.Errorf("lines = %q, want %q", got, want)
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("a\nb\r\nc"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Splitter{Emit: func(l string) {
			if l == "" || strings.ContainsAny(l, "\r\n") || len(l) > 3*maxLine {
				t.Errorf("line %q", l)
			}
		}}
		s.Add(data)
		s.Flush()
	})
}
