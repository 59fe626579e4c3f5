package state

import (
	"strconv"
	"strings"
	"time"
)

// keys builds the keys of one pool. Lua scripts receive the prefix and build on it; the form of a key is written only
// there, in this file and in the table in doc.go.
type keys struct{ prefix string }

func newKeys(pool string) keys { return keys{prefix: "rv:{" + pool + "}:"} }

func (k keys) events() string                    { return k.prefix + "events" }
func (k keys) poolEvents() string                { return k.prefix + "events:pool" }
func (k keys) hostEvents(h string) string        { return k.prefix + "events:host:" + h }
func (k keys) conv(m string) string              { return k.prefix + "conv:" + m }
func (k keys) convs() string                     { return k.prefix + "convs" }
func (k keys) response(tenant, id string) string { return k.prefix + "response:" + tenant + ":" + id }
func (k keys) host(h string) string              { return k.prefix + "host:" + h }
func (k keys) settings(name string) string       { return k.prefix + "settings:" + name }
func (k keys) day(t time.Time) string {
	return k.prefix + "day:" + strconv.FormatInt(t.Unix()/86400, 10)
}

// validPool rejects names that would break the hash tag.
func validPool(pool string) bool {
	return pool != "" && !strings.ContainsAny(pool, "{}: \t\r\n")
}
