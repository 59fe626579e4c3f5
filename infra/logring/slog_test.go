package logring

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// Both get what is logged, at the logger's own level; the ring has one line a record, without secrets.
func TestTee(t *testing.T) {
	var out bytes.Buffer
	ring := New(0)
	log := Tee(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})), ring, "known-secret")
	log.Info("too low")
	log.With("host", "here").Warn("two\nlines", "error", "password=hunter22", "stack", strings.Repeat("x", 2*maxLine)+" known-secret")
	log.Error("last", "url", "redis://:hunter22@here/0")
	lines := texts(ring.Tail(-1))
	if all := strings.Join(lines, "\n"); len(lines) != 4 || !strings.Contains(lines[0], `level=WARN msg="two\nlines" host=here`) || strings.Contains(all, "hunter22") || strings.Contains(all, "known-secret") ||
		!strings.Contains(lines[3], "msg=last url=redis://[secret]@here/0") {
		t.Errorf("%d lines: %s", len(lines), all)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || !strings.Contains(out.String(), `"host":"here"`) {
		t.Errorf("the log itself: %s", &out)
	}
}
