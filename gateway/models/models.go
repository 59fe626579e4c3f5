// Package models provides what a gateway's handlers need to know about models: which one a name means, its options, its
// weights, its state in the pool, how long it stays. It keeps copies of the pool's run-time tables and of this
// gateway's own uses, and calls runners.
package models

import (
	"context"
	"slices"
	"sync/atomic"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/modelfile"
	"reveille/infra/state"
)

// Config configures a Registry. All fields but Withheld are required.
type Config struct {
	Gate    *scheduling.Gate
	Store   *state.Store
	Mirror  *state.Mirror
	Catalog func() *catalog.Catalog
	Runners *Runners

	// Withheld returns why a registered model is not served, "" if it is served or not registered; nil: all are served.
	Withheld func(id string) string
}

// Registry is what one gateway knows of the pool's models. Make it with New; it is safe for concurrent use.
type Registry struct {
	*Runners
	cfg     Config
	Tables  *Tables
	Uses    Uses
	aliased atomic.Pointer[aliased]
	reader  reader
	facts   modelfile.Cache[modelfile.Facts]
}

// New makes a registry. Run its Tables.
func New(cfg Config) *Registry {
	return &Registry{Runners: cfg.Runners, cfg: cfg, Tables: newTables(cfg.Store)}
}

// OnEvent processes an event of the pool; pass it the mirror's events. It never blocks.
func (d *Registry) OnEvent(e state.Event) {
	if e.Kind == "settings" || e.Kind == "sync" {
		d.Tables.notify()
	}
}

// Unload unloads a model, or all for "", and returns the names of those unloaded. When it returns, the mirror is up to
// date.
func (d *Registry) Unload(ctx context.Context, model string, force bool) (gone []string, err error) {
	done, err := d.cfg.Gate.Unload(ctx, model, force)
	if err != nil {
		return nil, err
	}
	gone = []string{}
	for _, u := range done {
		if u.Err != nil {
			err = u.Err
		} else if !slices.Contains(gone, u.Model) {
			gone = append(gone, u.Model)
		}
	}
	_, _ = d.Refresh(ctx) // the models are gone even if this fails
	return gone, err
}

// EnsureGone unloads a model. It returns nil if the model is not loaded.
func (d *Registry) EnsureGone(ctx context.Context, model string) error {
	if _, err := d.Unload(ctx, model, false); err != nil && api.As(err).Kind != api.ModelNotLoaded {
		return err
	}
	return nil
}
