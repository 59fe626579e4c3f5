package state

import "strings"

// keys spells the keys of one pool. Lua scripts get the prefix and build on it; this file and the table in doc.go are
// the only other places where a key's form is written.
type keys struct{ prefix string }

func newKeys(pool string) keys { return keys{prefix: "rv:{" + pool + "}:"} }

func (k keys) events() string              { return k.prefix + "events" }
func (k keys) poolEvents() string          { return k.prefix + "events:pool" }
func (k keys) hostEvents(h string) string  { return k.prefix + "events:host:" + h }
func (k keys) idle() string                { return k.prefix + "idle" }
func (k keys) settings(name string) string { return k.prefix + "settings:" + name }

// validPool refuses names that would break the hash tag.
func validPool(pool string) bool {
	return pool != "" && !strings.ContainsAny(pool, "{}: \t\r\n")
}
