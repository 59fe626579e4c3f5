package catalog

import (
	"bytes"
	"encoding/json"
)

// Outdated reports whether an engine that was loaded for a model under the old catalogue must be reloaded or unloaded
// under the new one: the model differs in a field that engines are started with, the content of its recipe changed, or
// the new catalogue lacks it. It compares only that model.
func Outdated(old, new *Catalog, id string) bool {
	a, b := old.index.byID[id], new.index.byID[id]
	return a == nil || b == nil || a.Type != b.Type || a.Recipe != b.Recipe || a.Checkpoint != b.Checkpoint || a.SHA256 != b.SHA256 ||
		a.MMProj != b.MMProj || a.MMCache != b.MMCache || a.Conversations != b.Conversations || a.Devices != b.Devices || a.Choice() != b.Choice() || !a.Options.Equal(b.Options) ||
		!same(old.Recipes[a.Recipe], new.Recipes[b.Recipe])
}

// same compares by the published form, in which a value that was read back equals the one that was written.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
