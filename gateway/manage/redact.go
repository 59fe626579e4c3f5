package manage

import (
	"encoding/json"
	"maps"
	"strings"

	"reveille/infra/catalog"
	"reveille/infra/recipe"
)

// Answers to keys without manage leave out where something is stored on a host, how to reach it, and the command line
// of its process. Members stay, with empty values, for clients that expect them.

// redact removes from a report what only managers may see.
func (h *healthReport) redact() {
	for _, list := range [][]loadedModel{h.Loaded, h.Retired} {
		for i := range list {
			m := &list[i]
			m.Checkpoint, m.BackendURL, m.PID, m.Plan, m.Command = redactCheckpoint(m.Checkpoint), "", 0, nil, []string{}
			var o recipe.Options
			_ = json.Unmarshal(m.Options, &o) // options that are not an object come out as an empty one
			m.Options = json.RawMessage(redactOptions(o).Canonical())
		}
	}
	if h.Checkpoint != nil { // the first one's: it was removed there
		h.Checkpoint = &h.Loaded[0].Checkpoint
	}
	h.Refused = nil
	redactRunners(h.Runners)
}

// redactRunners removes how engines are confined, which names paths and users, what devices their machines have, and how
// these start.
func redactRunners(runners []runnerInfo) {
	for i := range runners {
		runners[i].Sandbox, runners[i].Found, runners[i].Boot = nil, nil, nil
	}
}

// redactCheckpoint returns a public repository's checkpoint unchanged, and only the last part of other locations.
func redactCheckpoint(checkpoint string) string {
	if catalog.ParseCheckpoint(checkpoint).Scheme == catalog.SchemeHF {
		return checkpoint
	}
	return weightsName(checkpoint)
}

// redactOptions empties arguments and texts that may hold paths or addresses.
func redactOptions(o recipe.Options) recipe.Options {
	out := maps.Clone(o)
	for name, v := range out {
		if text, is := v.(string); is && (name == "args" || strings.HasSuffix(name, "_args") || strings.ContainsAny(text, `/\:`)) {
			out[name] = ""
		}
	}
	return out
}

// redactSetting is redactOptions for a run-time setting, which may be a number or an object.
func redactSetting(value json.RawMessage) json.RawMessage {
	var o recipe.Options
	if json.Unmarshal(value, &o) != nil || o == nil {
		return value
	}
	return json.RawMessage(redactOptions(o).Canonical())
}
