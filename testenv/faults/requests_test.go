package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv/calls"
)

// Row 33: what a request itself does wrong is told at once, in the dialect of its path and as not worth a retry, and
// loads nothing.
func TestRow33BadRequests(t *testing.T) {
	t.Parallel()
	guests := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(guests, []byte("only-a-guest infer guest\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t, calls.Catalogue{"a": "llm", "e": "embedding"}, "--max-body=1MiB", "--admin-key=let-me-in", "--api-keys-file="+guests)
	const good = `{"model":"a","messages":[{"role":"user","content":"hi"}]}`
	for _, tc := range []struct {
		name, method, path, body, key string
		header                        map[string]string
		status                        int
		typ, code                     string
	}{
		{name: "no key", path: "/v1/chat/completions", body: good, key: "-", status: 401, typ: "authentication_error", code: "invalid_api_key"},
		{name: "wrong key", path: "/v1/chat/completions", body: good, key: "nonsense", status: 401, typ: "authentication_error", code: "invalid_api_key"},
		{name: "key without the right", method: "GET", path: "/logs", key: "only-a-guest", status: 403, typ: "permission_error", code: "insufficient_scope"},
		{name: "no JSON", path: "/v1/chat/completions", body: `{"model":`, status: 400, typ: "invalid_request_error", code: "invalid_json"},
		{name: "no object", path: "/v1/chat/completions", body: `[1]`, status: 400, typ: "invalid_request_error", code: "invalid_json"},
		{name: "no model", path: "/v1/chat/completions", body: `{"messages":[]}`, status: 400, typ: "invalid_request_error", code: "missing_required_parameter"},
		{name: "no messages", path: "/v1/chat/completions", body: `{"model":"a"}`, status: 400, typ: "invalid_request_error", code: "missing_required_parameter"},
		{name: "messages of a wrong type", path: "/v1/chat/completions", body: `{"model":"a","messages":"hi"}`, status: 400, typ: "invalid_request_error", code: "invalid_type"},
		{name: "wrong kind of model", path: "/v1/chat/completions", body: strings.Replace(good, `"a"`, `"e"`, 1), status: 400, typ: "invalid_request_error", code: "model_type_mismatch"},
		{name: "unknown model", path: "/v1/chat/completions", body: strings.Replace(good, `"a"`, `"x"`, 1), status: 404, typ: "invalid_request_error", code: "model_not_found"},
		{name: "unknown path", path: "/v1/nothing", body: good, status: 404, typ: "invalid_request_error", code: "unknown_url"},
		{name: "wrong method", method: "DELETE", path: "/v1/chat/completions", status: 405, typ: "invalid_request_error", code: "method_not_allowed"},
		{name: "too large", path: "/v1/chat/completions", body: good + strings.Repeat(" ", 1<<20), status: 413, typ: "invalid_request_error", code: "request_too_large"},
		{name: "compressed", path: "/v1/chat/completions", body: good, header: map[string]string{"Content-Encoding": "gzip"}, status: 415, typ: "invalid_request_error", code: "unsupported_media_type"},
		{name: "headers too large", path: "/v1/chat/completions", body: good, header: map[string]string{"x-long": strings.Repeat("x", 64<<10)}, status: 431, typ: "invalid_request_error"},
		{name: "remote media", path: "/v1/chat/completions", body: `{"model":"a","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]}`, status: 400, typ: "invalid_request_error"},
		{name: "nesting", path: "/v1/chat/completions", body: `{"model":"a","messages":[` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `]}`, status: 400, typ: "invalid_request_error", code: "invalid_json"},
	} {
		method := tc.method
		if method == "" {
			method = http.MethodPost
		}
		req, err := http.NewRequestWithContext(t.Context(), method, w.URL+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		key := "let-me-in"
		if tc.key != "" {
			key = tc.key
		}
		if key != "-" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		for name, v := range tc.header {
			req.Header.Set(name, v)
		}
		a := calls.Do(w.Client, req, nil)
		if code := a.Code(); tc.code == "" && a.Status == tc.status { // the table names no code of its own
			tc.code = code
		}
		calm{status: tc.status, typ: tc.typ, code: tc.code, final: true}.must(t, tc.name, a)
	}

	// The largest body is refused from its header, before it is sent.
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer let-me-in\r\nContent-Length: 1048577\r\n\r\n"
	if got := raw(t, w.URL, head); !strings.HasPrefix(got, "HTTP/1.1 413") || !strings.Contains(got, "request_too_large") {
		t.Errorf("a body announced as too large: %.200q", got)
	}
	// Two accounts of one body's length are the stuff of smuggling.
	head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer let-me-in\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	if got := raw(t, w.URL, head); !strings.HasPrefix(got, "HTTP/1.1 400") || strings.Count(got, "HTTP/1.1 ") != 1 {
		t.Errorf("two lengths: %.200q", got)
	}

	for path, shape := range map[string]string{
		"/v1/messages": `{"error":{"message":"","type":"not_found_error"},"request_id":"","type":"error"}`,
		"/v1/load":     `{"error":{"code":"model_not_found","message":"","param":"model","type":"invalid_request_error"},"message":"","status":"error"}`,
	} {
		body := `{"model":"x","model_name":"x","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+path, strings.NewReader(body))
		req.Header.Set("x-api-key", "let-me-in")
		a := calls.Do(w.Client, req, nil)
		var got map[string]any
		if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != 404 {
			t.Errorf("%s: %v", path, a)
		}
		blank(got)
		if text, _ := json.Marshal(got); string(text) != shape {
			t.Errorf("%s: %s, want %s", path, text, shape)
		}
	}
	if n := len(w.Loaded()); n != 0 || strings.Contains(w.Runner().Log(), `msg="load started"`) {
		t.Errorf("%d models were loaded by bad requests", n)
	}
}

// blank takes out what differs from one answer to the next.
func blank(m map[string]any) {
	for k, v := range m {
		switch v := v.(type) {
		case map[string]any:
			blank(v)
		case string:
			if k == "message" || k == "request_id" || k == "error" {
				m[k] = ""
			}
		default:
			m[k] = fmt.Sprint(v)
		}
	}
}
