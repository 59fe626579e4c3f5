package catalog

import (
	"os"
	"path/filepath"
	"strings"
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
		"":                                                true,
		models + "/sub/a.gguf":                            true,
		models + "//./sub/a.gguf":                         true,
		models + "/in.gguf":                               true,
		root + "/again/sub/a.gguf":                        true,
		models + "/not-here.gguf":                         true, // a host may have it, and checks itself
		models:                                            false,
		models + "/out.gguf":                              false,
		models + "/dir/a.gguf":                            false,
		models + "/../private/a.gguf":                     false,
		models + "/sub/../sub/a.gguf":                     false,
		root + "/models-too/a.gguf":                       false,
		root + "/private/a.gguf":                          false,
		"a.gguf":                                          false,
		"lab/model":                                       false,
		"hf://lab/tiny-GGUF/tiny.gguf":                    true,
		"hf://lab/tiny-GGUF":                              true,
		"hf://lab/tiny-GGUF/tiny.gguf@main":               true,
		"hf://lab/tiny/tiny-GGUF":                         false,
		"hf://other/tiny-GGUF/tiny.gguf":                  false,
		"s3://bucket/models/a.gguf":                       true,
		"s3://bucket/models-too/a.gguf":                   false,
		"s3://bucket/secret":                              false,
		"s3://other/models/a.gguf":                        false,
		"HF://lab/tiny-GGUF":                              false,
		"hf://lab/tiny-GGUF/-x.gguf":                      false,
		"hf://lab/tiny-GGUF/q/..%2f..%2fx.gguf":           false,
		"hf://lab/tiny-GGUF/%2f..%2fx.gguf":               false,
		"hf://lab/tiny-GGUF/{api_key}.gguf":               false,
		"hf://lab/tiny-GGUF/{api_key}":                    false,
		"hf://lab/tiny-GGUF/a..b.gguf":                    false,
		"hf://lab/tiny-GGUF/.a.gguf":                      false,
		"hf://lab/tiny-GGUF//a.gguf":                      false,
		"hf://lab/tiny-GGUF/a.gguf?x=1":                   false,
		"hf://lab/tiny-GGUF/a.gguf#x":                     false,
		"hf://lab/tiny-GGUF/a b.gguf":                     false,
		"hf://lab/tiny-GGUF/\u0430.gguf":                  false,
		"hf://lab/tiny-GGUF/a.py":                         false,
		"hf://lab/tiny-GGUF/a.gguf@-x":                    false,
		"hf://lab/tiny-GGUF/a.gguf@a/../b":                false,
		"hf://lab/tiny-GGUF/a.gguf@refs/pr/1":             true,
		"hf://lab/tiny-GGUF/Q4_K_M/a-00001-of-00002.gguf": true,
		"hf://lab/tiny-GGUF/model.safetensors":            true,
		"hf://lab/-GGUF/a.gguf":                           false,
		"s3://bucket/models/-a.gguf":                      false,
		"s3://bucket/models/../secret.gguf":               false,
		"s3://bucket/models/%2e%2e/a.gguf":                false,
		"s3://bucket/models/{api_key}.gguf":               false,
		"s3://bucket/models/credentials":                  false,
		"file://" + models + "/sub/a.gguf":                false,
		models + "/sub/a.gguf\x00" + "/../../":            false,
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
	if err := list.Check(&Model{Checkpoint: "lab/tiny-GGUF:Q4_K_M"}); err == nil || !strings.Contains(err.Error(), "hf://org/repo/file.gguf") {
		t.Errorf("Lemonade's name of a file is answered with %v", err)
	}
}

// TestRegistrableOwners: an organization or a bucket is never an address, whatever the list allows.
func TestRegistrableOwners(t *testing.T) {
	all := RegisterList{"hf://", "s3://"}
	for owner, want := range map[string]bool{
		"lab": true, "01-ai": true, "a.b": true, "x86": true, "127.0.0.1": false, "127.1": false, "0x7f.1": false, "0177.0.0.1": false,
		"-x": false, ".x": false, "a..b": false, "a%2fb": false, "a:80": false, "{api_key}": false, "a@b": false, "": false,
	} {
		for _, checkpoint := range []string{"hf://" + owner + "/repo/a.gguf", "s3://" + owner + "/a.gguf"} {
			if err := all.Check(&Model{ID: "user.x", Checkpoint: checkpoint}); (err == nil) != want {
				t.Errorf("%s: %v, want allowed %t", checkpoint, err, want)
			}
		}
	}
}
