package front

import (
	"strings"
	"testing"

	"reveille/gateway/wire"
)

// Every route of the table is served, but for the dialect that has a package of its own.
func TestEveryRouteHasAHandler(t *testing.T) {
	s := New(Config{})
	defer s.end()
	known := map[string]bool{}
	for _, route := range wire.Routes() {
		known[route.Name] = true
		if s.handlers[route.Name] == nil && !strings.HasPrefix(route.Name, "ollama_") {
			t.Errorf("route %s has no handler", route.Name)
		}
	}
	for name := range s.handlers {
		if !known[name] {
			t.Errorf("handler %s serves no route", name)
		}
	}
}
