package sim

import (
	"context"
	"os"
	"runtime/debug"
	"testing"

	"github.com/redis/go-redis/v9"
)

// quiet drops what the Redis client says of connections that the simulated network breaks.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	debug.SetGCPercent(400) // scripts on the embedded Redis make much short-lived garbage
	os.Exit(m.Run())
}
