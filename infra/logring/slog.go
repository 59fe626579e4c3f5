package logring

import (
	"context"
	"log/slog"
	"time"

	"reveille/infra/redact"
)

// Tee returns a logger that writes to log and, as text without secrets, to the ring. known are values that it hides wherever
// they stand, besides what looks like a secret.
func Tee(log *slog.Logger, ring *Ring, known ...string) *slog.Logger {
	w := &writer{known: known}
	w.lines.Emit = func(line string) { ring.Append(line, time.Now()) }
	return slog.New(slog.NewMultiHandler(log.Handler(), slog.NewTextHandler(w, &slog.HandlerOptions{Level: levelOf(log)})))
}

// levelOf is the least level that a logger logs.
func levelOf(log *slog.Logger) slog.Level {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if log.Enabled(context.Background(), l) {
			return l
		}
	}
	return slog.LevelError
}

// writer takes a record with each call of Write, from one handler, which makes one call at a time.
type writer struct {
	lines Splitter
	known []string
}

// Write implements io.Writer.
func (w *writer) Write(record []byte) (int, error) {
	w.lines.Add([]byte(redact.Secrets(string(record), w.known...))) // before lines are cut: no secret is in two of them
	w.lines.Flush()
	return len(record), nil
}
