package manage

import "testing"

func TestRedact(t *testing.T) {
	for checkpoint, want := range map[string]string{"/srv/models/a.gguf": "a.gguf", `C:\models\a.gguf`: "a.gguf", "s3://bucket/x/a.gguf": "a.gguf", "hf://org/repo/a.gguf": "hf://org/repo/a.gguf", "": ""} {
		if got := redactCheckpoint(checkpoint); got != want {
			t.Errorf("%s: %s, want %s", checkpoint, got, want)
		}
	}
	if o := redactOptions(map[string]any{"args": "-np 2", "llamacpp_args": "-np 2", "path": "/etc/x", "backend": "cuda", "ctx_size": int64(5)}); o["args"] != "" || o["llamacpp_args"] != "" || o["path"] != "" || o["backend"] != "cuda" || o["ctx_size"] != int64(5) {
		t.Error(o)
	}
}
