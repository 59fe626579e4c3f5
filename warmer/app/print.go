package app

import (
	"encoding/json"

	"reveille/warmer/sweep"
)

// print writes a report in the format of the settings.
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
