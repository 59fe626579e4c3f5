package testenv

import (
	"path/filepath"
	"testing"

	"reveille/infra/catalog"
)

// The default catalog is valid, and with the engines and models fetched there is
// nothing to warn of.
func TestDefaultCatalogue(t *testing.T) {
	Models(t)
	t.Chdir(Root(t)) // its paths are relative to the module
	_, warnings, err := catalog.Load(filepath.Join("testenv", "local", "models.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) > 0 {
		t.Errorf("warnings: %v", warnings)
	}
}
