package mmcache

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// counter counts a client's pipelines.
type counter struct{ pipelines, reads atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.pipelines.Add(1)
		for _, cmd := range cmds {
			if s, ok := cmd.Args()[1].(string); ok && strings.Contains(s, "HSTRLEN") {
				c.reads.Add(1)
				break
			}
		}
		return next(ctx, cmds)
	}
}
