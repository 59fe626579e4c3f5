package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"reveille/infra/awssecret"
	"reveille/infra/config"
	"reveille/infra/state"
)

// ReportSettings are the flags of `runner report`.
type ReportSettings struct {
	config.Redis
	Host   string `help:"Name of this host in the pool."`
	Failed string `help:"Why the start failed; without it the host is reported as booting."`
}

// Report writes to the pool that a host's machine is booting or failed to start. It takes a few seconds at most.
func Report(ctx context.Context, s ReportSettings) error {
	if s.Host == "" {
		return errors.New("--host (REVEILLE_HOST) is missing")
	}
	credentials := awssecret.FollowRedis(s.RedisSecret, slog.New(slog.DiscardHandler))
	store, err := state.Open(state.Options{URL: s.RedisURL, Credentials: credentials, Pool: s.Pool, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	return store.ReportBoot(ctx, s.Host, s.Failed)
}
