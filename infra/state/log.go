package state

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogLibrary sends what the Redis library logs by itself (every failed connection, to standard error unless told
// otherwise) to log at debug level; what matters of it, this package logs once per change. It acts on the whole process
// and is not safe beside open stores: call it from main before the first Open.
func LogLibrary(log *slog.Logger) { redis.SetLogger(libraryLog{log}) }

type libraryLog struct{ log *slog.Logger }

// Printf implements the library's logger.
func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
