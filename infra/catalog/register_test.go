package catalog

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRegisterList(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"models/sub", "models-too", "private"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"models/sub/a.gguf", "models-too/a.gguf", "private/a.gguf"} {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"models/out.gguf": "private/a.gguf", "models/dir": "private", "models/in.gguf": "models/sub/a.gguf", "again": "models"} {
		if err := os.Symlink(filepath.Join(root, to), filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	models := filepath.Join(root, "models")
	list, err := ParseRegisterList([]string{models, "", filepath.Join(root, "again"), "hf://lab/*-GGUF", "s3://bucket/models/"})
	if err != nil {
		t.Fatal(err)
	}
	for checkpoint, want := range map[string]bool{
		"":                                     true,
		models + "/sub/a.gguf":                 true,
		models + "//./sub/a.gguf":              true,
		models + "/in.gguf":                    true,
		root + "/again/sub/a.gguf":             true,
		models + "/not-here.gguf":              true, // a host may have it, and looks itself
		models:                                 false,
		models + "/out.gguf":                   false,
		models + "/dir/a.gguf":                 false,
		models + "/../private/a.gguf":          false,
		models + "/sub/../sub/a.gguf":          false,
		root + "/models-too/a.gguf":            false,
		root + "/private/a.gguf":               false,
		"a.gguf":                               false,
		"lab/model":                            false,
		"hf://lab/tiny-GGUF/tiny.gguf":         true,
		"hf://lab/tiny-GGUF":                   true,
		"hf://lab/tiny-GGUF/tiny.gguf@main":    true,
		"hf://lab/tiny/tiny-GGUF":              false,
		"hf://other/tiny-GGUF/tiny.gguf":       false,
		"s3://bucket/models/a.gguf":            true,
		"s3://bucket/models-too/a.gguf":        false,
		"s3://bucket/secret":                   false,
		"s3://other/models/a.gguf":             false,
		"HF://lab/tiny-GGUF":                   false,
		"file://" + models + "/sub/a.gguf":     false,
		models + "/sub/a.gguf\x00" + "/../../": false,
	} {
		m := Model{ID: "user.x", Checkpoint: checkpoint}
		if err := list.Check(&m); (err == nil) != want {
			t.Errorf("checkpoint %q: %v, want allowed %t", checkpoint, err, want)
		}
		m = Model{ID: "user.x", MMProj: checkpoint}
		if err := list.Check(&m); (err == nil) != want {
			t.Errorf("projector %q: %v, want allowed %t", checkpoint, err, want)
		}
		m = Model{ID: "user.x", Checkpoint: checkpoint}
		if err := RegisterList(nil).Check(&m); (err == nil) != (checkpoint == "") {
			t.Errorf("%q without a list: %v", checkpoint, err)
		}
	}
	if Below(models+"/dir/a.gguf", list) || Below(models+"/not-here.gguf", list) || !Below(models+"/in.gguf", list) || Below(models+"/in.gguf", nil) {
		t.Error("Below does not follow links")
	}
	for _, bad := range []string{"http://x", "hf://[", "file:///models"} {
		if _, err := ParseRegisterList([]string{bad}); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
	if all, _ := ParseRegisterList([]string{"hf://"}); all.Check(&Model{Checkpoint: "hf://any/thing"}) != nil {
		t.Error("hf:// does not cover the hub")
	}
}
