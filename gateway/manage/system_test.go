package manage

import (
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

func TestBackends(t *testing.T) {
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	r := backendsOf(&llamacpp, policy.CPU)
	if r["cpu"].State != "supported" || r["vulkan"].State != "unsupported" {
		t.Errorf("%+v", r)
	}
	one := backendsOf(&recipe.Recipe{Devices: policy.NPU}, policy.NPU)
	if b := one["default"]; len(one) != 1 || b.State != "supported" || len(b.Devices) != 1 {
		t.Errorf("%+v", one)
	}
}
