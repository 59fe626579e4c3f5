package weights

import (
	"strings"
	"testing"

	"reveille/infra/catalog"
)

func TestOnlyNeededFilesAreFetched(t *testing.T) {
	for list, want := range map[string]string{
		"config.json model.onnx":                          "config.json model.onnx",
		"a.safetensors b.bin c.PT d/e.onnx f.json g.gguf": "a.safetensors f.json",
		"README.md m.gguf":                                "m.gguf -> m.gguf",
		"a.gguf b.gguf":                                   "does not name one model",
		".a d/.b":                                         "",
	} {
		var files []File
		for name := range strings.FieldsSeq(list) {
			files = append(files, File{Name: name})
		}
		what, err := neededFiles(files)
		var names []string
		for _, f := range what.files {
			names = append(names, f.Name)
		}
		got := strings.Join(names, " ")
		if what.path != "" {
			got += " -> " + what.path
		}
		if err != nil {
			got = err.(*Error).Kind.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
}

func TestInvalidFileNamesAreRefused(t *testing.T) {
	sum := Location{SHA256: "00"}
	for name, at := range map[string]Location{"a": {}, "a/b.c": {}, "é ü": sum} {
		if err := checkFiles(at, []File{{Name: name}}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/../b", "/a", "a//b", "a/", `a\b`, "a\x00b", "a\nb", manifestName, strings.Repeat("a", 256)} {
		if checkFiles(Location{}, []File{{Name: name}}) == nil {
			t.Errorf("%q is a file", name)
		}
	}
	if checkFiles(sum, []File{{Name: "a"}, {Name: "b"}}) == nil || checkFiles(sum, nil) == nil || checkFiles(Location{}, make([]File, MaxFiles+1)) == nil {
		t.Error("accepted")
	}
}

func TestDigestsOfEachAlgorithm(t *testing.T) {
	for algorithm, want := range map[Algorithm]string{ // of "123456789", the check value of catalogs of checksums; git hash-object
		SHA256: "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225", SHA1: "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
		MD5: "25f9e794323b453885f5181f1b624d0b", CRC64NVME: "ae8b14860a799888", CRC32C: "e3069283", CRC32: "cbf43926",
		GitBlob: "e2e107ac61ac259b87c544f6e7a4eb03422c6c21",
	} {
		d := Digest{algorithm, want}
		h := d.hash(9)
		_, _ = h.Write([]byte("123456789"))
		if err := d.compare("f", h); err != nil {
			t.Error(err)
		}
	}
	if (Digest{}).hash(1) != nil || (Digest{"md17", "00"}).hash(1) != nil || (Digest{}).String() != "" {
		t.Error("a digest that says nothing")
	}
}

func TestEntryNamesAreReadableAndUnique(t *testing.T) {
	id := func(text string) string { return idOf(Location{Checkpoint: catalog.ParseCheckpoint(text)}) }
	a := id("hf://org/Repo-x/d/é m.gguf@v1")
	if !strings.HasPrefix(a, "hf-org-Repo-x---m.gguf-") || a == id("hf://org/Repo-x/d/é m.gguf") || len(id("s3://b/"+strings.Repeat("a", 900))) > 120 {
		t.Error(a)
	}
	if got := id("hf://o/r"); !strings.HasPrefix(got, "hf-o-r-") || strings.ContainsAny(got, "/@") {
		t.Error(got)
	}
}
