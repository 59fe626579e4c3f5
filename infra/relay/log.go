package relay

import "log/slog"

// HTTPLogger is a fasthttp.Logger that logs fasthttp's own lines, which report broken connections, at debug level and
// without their arguments.
type HTTPLogger struct{ Log *slog.Logger }

// Printf logs a line.
func (l HTTPLogger) Printf(format string, _ ...any) { l.Log.Debug("http", "line", format) }
