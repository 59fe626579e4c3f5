package catalog

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mustParse makes a catalog from a valid text.
func mustParse(t testing.TB, text string) *Catalog {
	t.Helper()
	c, _, err := Parse("models.yaml", []byte(text))
	if err != nil {
		t.Fatalf("Parse:\n%v", err)
	}
	return c
}
