package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// TestPermissionsOfArguments: an engine may read the files that its owner names in extra arguments, but not one that
// only the model's name spells.
func TestPermissionsOfArguments(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	model, vae, text, named := file("m.safetensors"), file("vae.safetensors"), file("t5 xxl.gguf"), file("named")
	s := Spec{
		Recipe: recipe.Shipped()[recipe.SDCpp], Model: named, Checkpoint: model, Type: policy.Image, Host: "127.0.0.1", Port: 1,
		Options: recipe.Options{"sdcpp_args": "--vae " + vae + " '--t5xxl=" + text + "' --lora-model-dir " + dir + " --threads 2"},
	}
	argv, err := Argv(s)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := permissionsOf(s, argv, nil, dir).Read, []string{model, vae, text}; !slices.Equal(got, want) {
		t.Errorf("readable: %q, want %q", got, want)
	}
}
