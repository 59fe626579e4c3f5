package state

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// newClient returns the client that the options require: for one node, a Cluster, or a primary named by Sentinels.
func newClient(o *redis.UniversalOptions) redis.UniversalClient {
	if !o.IsClusterMode {
		return redis.NewUniversalClient(o)
	}
	co := o.Cluster()
	co.DisableRoutingPolicies = true // calls here name their keys; the policies would make the first call wait for the table of all commands
	c := redis.NewClusterClient(co)
	c.AddHook(once{c})
	return c
}

// once makes a Cluster's client treat lost calls as a single node's client does. By default it would retry them three
// times, although the first may have taken effect, and would keep asking the same node for a minute, although its slots
// may have moved. Redirections are still followed, since a node that redirects has done nothing.
type once struct{ cluster *redis.ClusterClient }

var _ redis.Hook = once{}

// DialHook implements redis.Hook without changing anything.
func (once) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (o once) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return o.learn(ctx, next(ctx, single{cmd}))
	}
}

// ProcessPipelineHook implements redis.Hook.
func (o once) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		singles := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			singles[i] = single{cmd}
		}
		return o.learn(ctx, next(ctx, singles))
	}
}

// learn refreshes the slot table if a node gave no answer. It does not wait.
func (o once) learn(ctx context.Context, err error) error {
	var answered redis.Error
	if err != nil && !errors.As(err, &answered) {
		o.cluster.ReloadState(ctx)
	}
	return err
}

// single is a command that is sent only once.
type single struct{ redis.Cmder }

// NoRetry tells the client not to repeat the command.
func (single) NoRetry() bool { return true }
