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
	Host         string `help:"Name of this host in the pool."`
	Slot         string `help:"--host is a group of hosts, as for the runner; with instance this machine claims its host now." enum:"none,instance,pod" default:"none"`
	RunnerSecret string `help:"Secret shared by the pool's gateways and runners; only --slot=instance needs it."`
	Failed       string `help:"Why the start failed; without it the host is reported as booting."`
}

const reportLimit = 10 * time.Second

// Report writes to the pool that a host's machine is booting or failed to start. A machine of a group claims its host
// first: if it never gets as far as its runner, that host's sleep ends it. It takes 10 seconds at most.
func Report(ctx context.Context, s ReportSettings) error {
	if s.Host == "" {
		return errors.New("--host (REVEILLE_HOST) is missing")
	}
	var secret []byte
	if s.Slot == slotInstance { // the models file in Redis, which names the hosts of the group, is signed with it
		var err error
		if secret, err = config.Secret(s.RunnerSecret); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	credentials := awssecret.FollowRedis(s.RedisSecret, slog.New(slog.DiscardHandler))
	store, err := state.Open(state.Options{URL: s.RedisURL, Credentials: credentials, Pool: s.Pool, Secret: secret, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	host, _, err := slotOf(ctx, s.Slot, s.Host, store, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return store.ReportBoot(ctx, host, s.Failed)
}
