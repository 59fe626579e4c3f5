package modelfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
)

// header writes a GGUF file.
type header struct{ bytes.Buffer }

func (h *header) num(v any) *header {
	_ = binary.Write(h, binary.LittleEndian, v)
	return h
}

func (h *header) text(s string) *header {
	h.num(uint64(len(s)))
	h.WriteString(s)
	return h
}

func begin(tensors, keys uint64) *header {
	h := &header{}
	h.WriteString("GGUF")
	return h.num(uint32(3)).num(tensors).num(keys)
}

// tensor describes one of type F32.
func (h *header) tensor(offset uint64, dims ...uint64) *header {
	h.text("t").num(uint32(len(dims)))
	for _, n := range dims {
		h.num(n)
	}
	return h.num(uint32(0)).num(offset)
}

// weights pads the header and adds bytes.
func (h *header) weights(align, n int) *header {
	h.Write(make([]byte, (h.Len()+align-1)/align*align-h.Len()+n))
	return h
}

func write(t testing.TB, name string, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheck(t *testing.T) {
	const big = uint64(1) << 60
	noise := append([]byte("GGUF\x03\x00\x00\x00"), bytes.Repeat([]byte("\xff\xfe\xfd\xfc"), 4096)...)
	for name, tc := range map[string]struct {
		raw    []byte
		reason string // "" for a sound file
	}{
		"no tensors":             {raw: begin(0, 0).Bytes()},
		"tensors":                {raw: begin(2, 0).tensor(0, 8).tensor(32, 2, 4).weights(32, 64).Bytes()},
		"version 2":              {raw: append([]byte("GGUF\x02\x00\x00\x00"), make([]byte, 16)...)},
		"metadata":               {raw: begin(0, 3).text("a").num(uint32(8)).text("b").text("tokenizer.x").num(uint32(9)).num(uint32(8)).num(uint64(2)).text("x").text("y").text("n").num(uint32(10)).num(uint64(7)).Bytes()},
		"another alignment":      {raw: begin(1, 1).text("general.alignment").num(uint32(4)).num(uint32(8)).tensor(0, 8).weights(8, 32).Bytes()},
		"a type yet to come":     {raw: begin(1, 0).text("t").num(uint32(1)).num(uint64(8)).num(uint32(9999)).num(uint64(0)).weights(32, 1).Bytes()},
		"empty":                  {nil, "cut off"},
		"another file":           {[]byte("not a model at all, but long enough to hold a header"), "does not start"},
		"noise":                  {noise, "more tensors"},
		"a version yet to come":  {append([]byte("GGUF\x09\x00\x00\x00"), make([]byte, 16)...), "version 9"},
		"countless tensors":      {begin(big, 0).Bytes(), "more tensors"},
		"more than it describes": {begin(3, 0).tensor(0, 8).Bytes(), "cut off"},
		"countless keys":         {begin(0, big).Bytes(), "more metadata"},
		"a long name":            {begin(0, 1).num(big).Bytes(), "name"},
		"a long text":            {begin(0, 1).text("general.architecture").num(uint32(8)).num(big).Bytes(), "text"},
		"a long list":            {begin(0, 1).text("llama.attention.head_count_kv").num(uint32(9)).num(uint32(4)).num(uint64(1) << 40).Bytes(), "list"},
		"a list of lists":        {begin(0, 1).text("a").num(uint32(9)).num(uint32(9)).num(uint64(1)).Bytes(), "unknown kind"},
		"an unknown kind":        {begin(0, 1).text("a").num(uint32(99)).Bytes(), "unknown kind"},
		"cut":                    {begin(0, 2).text("a").num(uint32(4)).num(uint32(1)).Bytes(), "cut off"},
		"cut in a list":          {begin(0, 1).text("tokenizer.x").num(uint32(9)).num(uint32(4)).num(uint64(1000)).Bytes(), "cut off"},
		"a promise of tensors":   {begin(0, 1).text("split.tensors.count").num(uint32(10)).num(uint64(math.MaxInt64)).Bytes(), "more tensors"},
		"no alignment":           {begin(0, 1).text("general.alignment").num(uint32(4)).num(uint32(0)).Bytes(), "alignment"},
		"many dimensions":        {begin(1, 0).tensor(0, 1, 1, 1, 1, 1, 1, 1, 1, 1).Bytes(), "dimensions"},
		"a size that overflows":  {begin(1, 0).tensor(0, 1<<40, 1<<40).weights(32, 32).Bytes(), "larger"},
		"an offset that does":    {begin(1, 0).tensor(math.MaxUint64-8, 8).weights(32, 32).Bytes(), "beyond its end"},
		"a tensor too few":       {begin(2, 0).tensor(0, 8).tensor(32, 8).weights(32, 32).Bytes(), "cut off"},
		"a byte too few":         {begin(1, 0).tensor(0, 8).weights(32, 31).Bytes(), "cut off"},
		"no weights":             {begin(1, 0).tensor(0, 8).Bytes(), "cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(write(t, "m.GGUF", tc.raw))
			var bad *Error
			if tc.reason == "" && err != nil || tc.reason != "" && (!errors.As(err, &bad) || !strings.Contains(bad.Reason, tc.reason)) {
				t.Errorf("%v, want %q", err, tc.reason)
			}
		})
	}
	if err := Check(write(t, "model.bin", []byte("not a GGUF file"))); err != nil {
		t.Error("another format:", err)
	}
	if err := Check(write(t, "blob", noise)); err == nil {
		t.Error("a GGUF file of another name was not looked at")
	}
	if err := Check(t.TempDir()); err != nil {
		t.Error("a folder:", err)
	}
	if err := Check(filepath.Join(t.TempDir(), "none.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a missing file:", err)
	}
}

// Real models are sound; not so with a part of them missing, wherever it is cut.
func TestRealModels(t *testing.T) {
	files := testenv.Models(t)
	for _, path := range []string{files.Gemma, files.GemmaVision, files.MiniLM} {
		began := time.Now()
		if err := Check(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		t.Log(filepath.Base(path), time.Since(began))
	}
	whole, err := os.ReadFile(files.MiniLM)
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, "cut.gguf", whole)
	for _, size := range []int64{int64(len(whole)) - 1, int64(len(whole)) / 2, 1 << 20, 1000, 24, 4, 0} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if bad, ok := errors.AsType[*Error](Check(path)); !ok || !strings.Contains(bad.Reason, "cut off") {
			t.Errorf("cut to %d bytes: %v", size, bad)
		}
	}
}

func TestChecker(t *testing.T) {
	good, other := begin(1, 0).tensor(0, 8).weights(32, 32).Bytes(), begin(1, 0).tensor(0, 8).weights(32, 64).Bytes()
	bad := bytes.Repeat([]byte{0}, len(good))
	path := write(t, "m.gguf", good)
	old := time.Now().Add(-time.Hour)
	var c Checker
	check := func(what string, raw []byte, date time.Time, want bool) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, raw, 0o600), os.Chtimes(path, date, date)); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(path); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("sound", good, old, true)
	check("as it was by its date", bad, old, true) // which shows that it is not read again
	check("damaged", bad, old.Add(time.Minute), false)
	check("still damaged", bad, old.Add(time.Minute), false)
	check("of another size", other, old, true)
	check("just written", good, time.Now(), true)
	check("written again in the same moment", bad, time.Now(), false)
	if err := c.Check(filepath.Join(t.TempDir(), "none.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a missing file:", err)
	}
}

// FuzzCheck: no file brings it down, makes it read for long, or is refused without a reason.
func FuzzCheck(f *testing.F) {
	f.Add(begin(2, 1).text("general.alignment").num(uint32(4)).num(uint32(16)).tensor(0, 8).tensor(32, 2, 4).weights(16, 64).Bytes())
	f.Add(begin(0, 1).text("tokenizer.x").num(uint32(9)).num(uint32(8)).num(uint64(2)).text("x").text("y").Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := Check(write(t, "m.gguf", raw))
		if bad, ok := errors.AsType[*Error](err); err != nil && (!ok || bad.Reason == "") {
			t.Errorf("%v", err)
		}
	})
}
