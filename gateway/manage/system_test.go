package manage

import (
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

func TestRecipeReport(t *testing.T) {
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	for found, want := range map[bool]string{true: "installed", false: "installable"} {
		r := recipeReport(&llamacpp, policy.CPU, found)
		if r.Backends["cpu"].State != want || r.Backends["vulkan"].State != "unsupported" || r.Default != "cpu" {
			t.Errorf("found %t: %+v", found, r)
		}
	}
	if inPath(&recipe.Recipe{}) || !inPath(&recipe.Recipe{Command: []recipe.Group{{"sh"}}}) {
		t.Error("a program is looked for in PATH")
	}
}
