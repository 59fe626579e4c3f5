package redact

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestResponse(t *testing.T) {
	tests := []struct{ in, want string }{
		{"failed to open /srv/models/qwen3/a.gguf: no such file", "failed to open [path]: no such file"},
		{"open '/model.gguf'", "open '[path]'"},
		{`cannot read C:\models\a.gguf now`, "cannot read [path] now"},
		{"in ~/models/x.gguf", "in [path]"},
		{"connect to 10.0.3.7:8080 refused", "connect to [address] refused"},
		{"connect to [fd00::1]:8080 refused", "connect to [address] refused"},
		{"host gpu-1:8080 and localhost:99", "host [address] and [address]"},
		{"GET http://127.0.0.1:4242/v1/chat failed", "GET [address] failed"},
		{"node.internal.example:443 is down", "[address] is down"},
		{"on secret-host it failed", "on [host] it failed"},
		{"secret-host", "[host]"},
		{"secret-host: not on secret-hostile, _secret-host or secret-host.", "[host]: not on secret-hostile, _secret-host or [host]."},
		{"GGML_ASSERT at ggml/src/ggml.c:1234 failed", "GGML_ASSERT at [file] failed"},
		{"boom\n#0  0x00007f in main ()\n#1  0x00007f in x ()\n", "boom"},
		{"Error\nTraceback (most recent call last):\n  File \"/a/b.py\", line 3\nValueError: bad size", "ValueError: bad size"},
		{"a\x00b\tc", "a b c"},
		{"cannot open </srv/models/x.gguf>, {/srv/models/x.gguf} or a|/srv/models/x.gguf|b", "cannot open <[path]>, {[path]} or a|[path]|b"},
		{"error;/srv/models/x.gguf->/srv/models/y.gguf", "error;[path]>[path]"},
		{"failed to open “/srv/models/x.gguf”", "failed to open “[path]”"},
		{"/srv/über/modelle/ü.gguf and /größe/x", "[path] and [path]"},
		{"open /srv/My Models/secret.gguf: no such file", "open [path]: no such file"},
		{"open /srv/models and/or docs", "open [path] and/or docs"},
		{`\\nas\models\x.gguf and '\\nas\x'`, "[path] and '[path]'"},
		{"file:///srv/x.gguf, s3://bucket/key and ssh://u@host/x", "[address] [address] and [address]"},
		{"[fe80::1%eth0]:80, fe80::1%eth0 and fd00::1:8080 down", "[address], [address] and [address] down"},
		{"see llama-main.cpp:92", "see [file]"},
		{"2001:db8:0:0:0:0:0:1 is down", "[address] is down"},
		{"connect to gpuhost:8080: refused; connect to gpu_a1:8080; dial tcp gpuhost:80", "connect to [address]: refused; connect to [address]; dial tcp [address]"},

		// What must stay.
		{"max_tokens:8192, tokens:8192 and line:1234", "max_tokens:8192, tokens:8192 and line:1234"},
		{"std::add, feed::Reader and 2026:11:26 10:30:00", "std::add, feed::Reader and 2026:11:26 10:30:00"},
		{"cannot resolve #/definitions/Foo/bar or $/a/b of messages[0]/content/type", "cannot resolve #/definitions/Foo/bar or $/a/b of messages[0]/content/type"},
		{"</think> closes <think>; <br/>; a regex ^[a-z]+/[0-9]+$; */*", "</think> closes <think>; <br/>; a regex ^[a-z]+/[0-9]+$; */*"},
		{`escapes \d+ and \\n and \\`, `escapes \d+ and \\n and \\`},
		{"use /v1/chat/completions for this", "use /v1/chat/completions for this"},
		{"messages[0].content: and/or image/png at line 1, column 16: x", "messages[0].content: and/or image/png at line 1, column 16: x"},
		{"model org/name:Q4_K_M and qwen3:8b", "model org/name:Q4_K_M and qwen3:8b"},
		{"n_ctx:8192, n_tokens:12345", "n_ctx:8192, n_tokens:12345"},
		{"llama.cpp says 3.5/4.0 of 10:30", "llama.cpp says 3.5/4.0 of 10:30"},
		{"end with /think", "end with /think"},
	}
	for _, tt := range tests {
		if got := Response(tt.in, "", "secret-host"); got != tt.want {
			t.Errorf("Answer(%q)\n got %q\nwant %q", tt.in, got, tt.want)
		}
	}
	if got := Response(strings.Repeat("long ", 9000)); len(got) > maxResponse+4 {
		t.Errorf("a message of %d bytes came through", len(got))
	}
}

func TestFailure(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"engine exited with status 1: cannot open '/srv/models/x.gguf'", "engine exited with status 1: cannot open 'x.gguf'"},
		{`loading C:\models\x.gguf failed`, "loading x.gguf failed"},
		{"see ../up/y.gguf and ~/z", "see y.gguf and z"},
		{"bind 127.0.0.1:8080, [::1]:80 and localhost:9", "bind [address], [address] and [address]"},
		{"got http://10.0.0.1/v1?key=1 from hf://o/r", "got [address] from [address]"},
		{"/src/tools/main.cpp:92: core.py:708 at a.example.com:92", "main.cpp:92: core.py:708 at [address]"},
		{"b4512 (cuda 12.4) says 3/4 layers\nfit", "b4512 (cuda 12.4) says 4 layers fit"},
		{"\xff\x00x ", "\uFFFD x"},
	} {
		if got := Failure(c.in); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "words") + "/secret/dir" + rapid.StringMatching(`[a-z/]*`).Draw(t, "rest")
		got := Failure(s)
		if len(got) > maxFailure+len("…") || strings.Contains(got, "secret/") {
			t.Fatalf("%q → %q", s, got)
		}
	})
}
