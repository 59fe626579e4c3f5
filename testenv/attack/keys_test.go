package attack

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestUnknownKeys checks that no route but the free ones answers without a right key.
func TestUnknownKeys(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	fetched := newCanary(t)
	for _, path := range []string{"/v1/models", "/v1/load", "/v1/unload", "/unload", "/logs", "/metrics", "/v1/chat/completions", "/api/tags", "/upstream/m/" + fetched.URL} {
		for _, method := range []string{"GET", "POST"} {
			refused(t, method+" "+path+" without a key", call(t, method, s.URL+path, `{"model":"m"}`), http.StatusUnauthorized)
			refused(t, method+" "+path+" with a wrong key", call(t, method, s.URL+path, `{"model":"m"}`, bearer(inferKey+"x")), http.StatusUnauthorized)
		}
	}
	if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false), bearer(inferKey)); !a.OK() {
		t.Errorf("with the right key: %v", a)
	}
	refused(t, "a load with an infer key", call(t, "POST", s.URL+"/v1/load", `{"model_name":"m"}`, bearer(inferKey)), http.StatusForbidden)
	resp, _, err := raw(t, s.URL, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \r\nAuthorization: Bearer "+otherKey+"x\r\n\r\n")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("two empty keys: %v %v", resp, err)
	}
}

// TestFilesOfOthers checks that a key reaches no file and no batch of another, by any form of their ids.
func TestFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t), "--batch-dir=" + dir}})
	const line = `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi"}]}}`
	upload := "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../../in.jsonl\"\r\n\r\n" + line + "\r\n--x--\r\n"
	made := func(a calls.Answer) string {
		var object struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(a.Body, &object); err != nil || !a.OK() {
			t.Fatal(a)
		}
		return object.ID
	}
	mine, other := bearer(inferKey), bearer(otherKey)
	file := made(call(t, "POST", s.URL+"/v1/files", upload, mine, "Content-Type: multipart/form-data; boundary=x"))
	create := `{"input_file_id":"` + file + `","endpoint":"/v1/chat/completions","completion_window":"24h"}`
	batch := made(call(t, "POST", s.URL+"/v1/batches", create, mine))
	tenants, err := os.ReadDir(dir)
	if err != nil || len(tenants) != 1 {
		t.Fatal(tenants, err)
	}
	for _, id := range []string{file, "..%2f" + tenants[0].Name() + "%2f" + file, file + ".json", file + "%00", "%2e%2e", batch} {
		refused(t, "GET of "+id, call(t, "GET", s.URL+"/v1/files/"+id, "", other), http.StatusNotFound)
		refused(t, "content of "+id, call(t, "GET", s.URL+"/v1/files/"+id+"/content", "", other), http.StatusNotFound)
		refused(t, "DELETE of "+id, call(t, "DELETE", s.URL+"/v1/files/"+id, "", other), http.StatusNotFound)
		refused(t, "GET of batch "+id, call(t, "GET", s.URL+"/v1/batches/"+id, "", other), http.StatusNotFound)
		refused(t, "cancel of "+id, call(t, "POST", s.URL+"/v1/batches/"+id+"/cancel", "", other), http.StatusNotFound)
	}
	refused(t, "a batch of another's file", call(t, "POST", s.URL+"/v1/batches", create, other), http.StatusNotFound)
	for _, path := range []string{"/v1/files", "/v1/batches"} {
		if a := call(t, "GET", s.URL+path, "", other); !a.OK() || !strings.Contains(string(a.Body), `"data":[]`) {
			t.Errorf("%s: %v", path, a)
		}
	}
	resp, _, err := raw(t, s.URL, "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\n"+mine+"\r\nContent-Type: multipart/form-data; boundary=x\r\n"+
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n")
	if err != nil || resp.StatusCode != http.StatusBadRequest || !resp.Close {
		t.Errorf("a broken chunk leaves the connection open: %+v %v", resp, err)
	}
	if a := call(t, "GET", s.URL+"/v1/files/"+file+"/content", "", mine); !a.OK() || string(a.Body) != line {
		t.Errorf("its own: %v", a)
	}
}
