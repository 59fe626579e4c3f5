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
	c.AddHook(noRetryCluster{c})
	return c
}

// noRetryCluster makes a Cluster's client treat lost calls as a single node's client does. By default it would retry
// them three times, although the first may have taken effect, and would keep asking the same node for a minute,
// although its slots may have moved. Redirections are still followed, since a node that redirects has done nothing.
type noRetryCluster struct{ cluster *redis.ClusterClient }

var _ redis.Hook = noRetryCluster{}

// DialHook implements redis.Hook without changing anything.
func (noRetryCluster) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (o noRetryCluster) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return o.refreshSlots(ctx, next(ctx, noRetryCmd{cmd}))
	}
}

// ProcessPipelineHook implements redis.Hook.
func (o noRetryCluster) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		singles := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			singles[i] = noRetryCmd{cmd}
		}
		return o.refreshSlots(ctx, next(ctx, singles))
	}
}

// refreshSlots refreshes the slot table if a node gave no response. It does not wait.
func (o noRetryCluster) refreshSlots(ctx context.Context, err error) error {
	var answered redis.Error
	if err != nil && !errors.As(err, &answered) {
		o.cluster.ReloadState(ctx)
	}
	return err
}

// noRetryCmd is a command that is sent once.
type noRetryCmd struct{ redis.Cmder }

// NoRetry makes the client send the command once.
func (noRetryCmd) NoRetry() bool { return true }
