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
	Failed string `help:"Why its start failed; without it, it is booting."`
}

// Report tells the pool how the start of a host's machine goes, in a few seconds at most.
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
