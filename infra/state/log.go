package state

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogLibrary sends the Redis library's own log (every failed connection, by default to standard error) to log at debug
// level. This package logs what matters once per change. LogLibrary affects the whole process and must not run while
// stores are open: call it from main before the first Open.
func LogLibrary(log *slog.Logger) { redis.SetLogger(libraryLog{log}) }

type libraryLog struct{ log *slog.Logger }

// Printf implements the library's logger.
func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
