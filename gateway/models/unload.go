package models

import (
	"context"
	"slices"

	"reveille/gateway/api"
)

// Unload unloads a model, or all for "", and returns the names of those unloaded. When it returns, the mirror is up to date.
func (d *Directory) Unload(ctx context.Context, model string, force bool) (gone []string, err error) {
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

// EnsureGone unloads a model. It is no error if the model is not loaded.
func (d *Directory) EnsureGone(ctx context.Context, model string) error {
	if _, err := d.Unload(ctx, model, false); err != nil && api.As(err).Kind != api.ModelNotLoaded {
		return err
	}
	return nil
}
