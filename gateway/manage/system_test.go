package manage

import (
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

func TestRecipeReport(t *testing.T) {
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	r := recipeReport(&llamacpp, policy.CPU)
	if r.Backends["cpu"].State != "supported" || r.Backends["vulkan"].State != "unsupported" {
		t.Errorf("%+v", r)
	}
	one := recipeReport(&recipe.Recipe{Devices: policy.NPU}, policy.NPU)
	if b := one.Backends["default"]; len(one.Backends) != 1 || b.State != "supported" || len(b.Devices) != 1 {
		t.Errorf("%+v", one)
	}
}
