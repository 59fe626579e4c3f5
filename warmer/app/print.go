package app

import (
	"encoding/json"

	"reveille/warmer/sweep"
)

// print writes a report as the settings want it.
func (w *Warmer) print(r sweep.Report) error {
	if w.deps.Out == nil {
		return nil
	}
	if !w.settings.JSON {
		return r.Table(w.deps.Out)
	}
	enc := json.NewEncoder(w.deps.Out)
	return enc.Encode(r)
}
