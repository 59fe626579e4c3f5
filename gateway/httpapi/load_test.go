package httpapi

import (
	"encoding/json"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	p := newPool(t, "1")
	r := p.want(200, p.post("/v1/load", `{"model_name":"uno"}`))
	for name, want := range map[string]any{"status": "success", "model_name": "one", "checkpoint": "", "recipe": "standin", "type": "llm", "device": "cpu"} {
		if r.json[name] != want {
			t.Errorf("%s is %v, want %v", name, r.json[name], want)
		}
	}
	if ms, is := r.json["load_ms"].(float64); !is || ms < 0 {
		t.Errorf("load_ms is %v", r.json["load_ms"])
	}
	first := p.only()
	time.Sleep(5 * time.Millisecond) // records hold times in ms
	again := p.want(200, p.post("/api/v1/load", `{"model":"one"}`))
	if again.header.Get("x-cold-start") != "" {
		t.Error("a repeated load is no cold start")
	}
	second := p.only()
	if first["pid"] != second["pid"] {
		t.Error("a load with the same options must keep the process")
	}
	if second["last_use"].(float64) <= first["last_use"].(float64) {
		t.Error("a repeated load is a use")
	}
	p.want(200, p.post("/v1/load", `{"model_name":"one","ctx_size":2048}`))
	third := p.only()
	if third["pid"] == first["pid"] || third["recipe_options"].(map[string]any)["ctx_size"] != 2048.0 {
		t.Errorf("other options must reload: %v", third)
	}
	evicting := p.want(200, p.post("/v1/load", `{"model_name":"two"}`))
	if got := evicting.header.Get("x-evicted"); got != "one" {
		t.Errorf("x-evicted is %q", got)
	}
	if p.only()["model_name"] != "two" {
		t.Error("two must have taken the slot")
	}
	r = p.want(202, p.post("/v1/load?wait=false", `{"model_name":"one"}`))
	if r.json["status"] != "loading" {
		t.Errorf("status %v", r.json["status"])
	}
	p.until("one is loaded", func() bool { return p.get("/v1/health").json["model_loaded"] == "one" })
}

// only returns the one loaded model of /health.
func (p *pool) only() map[string]any {
	p.t.Helper()
	list := p.want(200, p.get("/v1/health")).list("all_models_loaded")
	if len(list) != 1 {
		p.t.Fatalf("%d models are loaded: %v", len(list), list)
	}
	return list[0]
}

func TestLoadRefusals(t *testing.T) {
	p := newPool(t, "")
	for _, tc := range []struct {
		name, body  string
		status      int
		code, param string
	}{
		{"no name", `{}`, 400, "missing_required_parameter", "model_name"},
		{"null name", `{"model_name":null}`, 400, "missing_required_parameter", "model_name"},
		{"empty name", `{"model_name":""}`, 400, "missing_required_parameter", "model_name"},
		{"name not a string", `{"model_name":7}`, 400, "invalid_type", "model_name"},
		{"no body", ``, 400, "invalid_json", ""},
		{"not an object", `[]`, 400, "invalid_json", ""},
		{"unknown", `{"model_name":"nobody"}`, 404, "model_not_found", "model"},
		{"wrong type", `{"model_name":"one","ctx_size":"big"}`, 400, "invalid_type", "ctx_size"},
		{"an object for a number", `{"model_name":"one","ctx_size":{}}`, 400, "invalid_type", "ctx_size"},
		{"negative", `{"model_name":"one","ctx_size":-2}`, 400, "invalid_type", "ctx_size"},
		{"another recipe's", `{"model_name":"one","n_batch":2}`, 400, "unsupported_parameter", "n_batch"},
		{"arguments", `{"model_name":"one","args":"--tokens 2"}`, 400, "unsupported_parameter", "args"},
		{"flag not a flag", `{"model_name":"one","pinned":"yes"}`, 400, "invalid_type", "pinned"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := p.post("/v1/load", tc.body)
			if r.status != tc.status || r.code() != tc.code || r.param() != tc.param {
				t.Errorf("got %d %s %q, want %d %s %q: %s", r.status, r.code(), r.param(), tc.status, tc.code, tc.param, r.text)
			}
			if r.json["status"] != "error" || r.json["message"] == nil {
				t.Errorf("not the body of this dialect: %s", r.text)
			}
		})
	}
	if h := p.mirror.Snapshot().Hosts["here"]; h != nil && len(h.Queue) != 0 {
		t.Errorf("%d loads were queued", len(h.Queue))
	}
}

func TestSavedOptions(t *testing.T) {
	p := newPool(t, "1")
	ctx := func() any { return p.only()["recipe_options"].(map[string]any)["ctx_size"] }
	p.want(200, p.post("/v1/load", `{"model_name":"two","ctx_size":1024,"save_options":true}`))
	p.want(200, p.post("/v1/unload", ``))
	p.want(200, p.post("/v1/load", `{"model_name":"two"}`))
	if ctx() != 1024.0 {
		t.Errorf("saved options do not count: %v", ctx())
	}
	p.want(200, p.post("/v1/load", `{"model_name":"two","ctx_size":null}`))
	if ctx() != 512.0 {
		t.Errorf("null must skip the saved value: %v", ctx())
	}
	r := p.want(200, p.get("/v1/models/two/options"))
	part := func(name string) map[string]any { return r.json[name].(map[string]any) }
	if part("saved")["ctx_size"] != 1024.0 || r.json["recipe"] != "standin" {
		t.Errorf("options: %s", r.text)
	}
	part("effective")["model_name"] = "two"
	next, _ := json.Marshal(r.json["effective"])
	p.want(200, p.post("/v1/load", string(next)))
	if ctx() != 1024.0 {
		t.Errorf("the next load's options are not a load: %s", next)
	}
	p.want(200, p.post("/v1/load", `{"model_name":"two","ctx_size":null,"save_options":true}`))
	if r = p.want(200, p.get("/v1/models/two/options")); part("saved")["ctx_size"] != 1024.0 || ctx() != 512.0 {
		t.Errorf("null skips the saved value for one load only: %s", r.text)
	}
	p.want(200, p.post("/v1/internal/set", `{"ctx_size":3072}`))
	if r = p.want(200, p.get("/v1/models/one/options")); part("effective")["ctx_size"] != 3072.0 {
		t.Errorf("run-time settings do not count: %s", r.text)
	}
	p.want(200, p.post("/v1/internal/set", `{"ctx_size":null}`))
	for _, body := range []string{`{"nonsense":1}`, `{"pinned":true}`, `{"steps":3}`, `{"ctx_size":"many"}`, `{"args":"--tokens 3"}`, `{"ctx_size":0}`} {
		p.want(400, p.post("/v1/models/two/options", body))
	}
	r = p.want(200, p.post("/v1/models/two/options", `{"ctx_size":null,"batch_delay":3}`))
	if saved := r.json["saved"].(map[string]any); len(saved) != 1 || saved["batch_delay"] != 3.0 {
		t.Errorf("saved: %v", saved)
	}
	if r = p.want(200, p.post("/v1/models/two/options", `{"args":"","batch_delay":null}`)); len(part("saved")) != 0 {
		t.Errorf("an empty text stays saved: %s", r.text)
	}
	if r := p.post("/v1/models/two/options", `{"ctx_size":-7}`); r.status != 400 || r.param() != "ctx_size" {
		t.Errorf("a wrong option: %d %s", r.status, r.text)
	}
	r = p.want(200, p.do("DELETE", "/v1/models/two/options", ""))
	if saved := r.json["saved"].(map[string]any); len(saved) != 0 {
		t.Errorf("saved: %v", saved)
	}
	p.want(404, p.get("/v1/models/nobody/options"))
}

// The pin of a load ends when that copy is unloaded. The pin of a call stays until another call.
func TestPinOfALoadEndsWithIt(t *testing.T) {
	p := newPool(t, "1")
	by := func(id, want string) {
		t.Helper()
		if got, _ := p.want(200, p.get("/v1/models/"+id)).json["pinned_by"].(string); got != want {
			t.Errorf("%s is pinned by %q, want %q", id, got, want)
		}
	}
	p.want(200, p.post("/v1/load", `{"model_name":"one","pinned":true}`))
	by("one", "load")
	p.want(200, p.post("/v1/load", `{"model_name":"one","ctx_size":256}`)) // another copy, which nobody unloaded
	by("one", "load")
	p.want(200, p.post("/v1/unload", `{"model_name":"one"}`))
	by("one", "")
	p.want(200, p.chat("one"))
	if p.only()["pinned"] != false {
		t.Error("the load after the unload is pinned again")
	}
	p.want(200, p.chat("two"))

	p.want(200, p.post("/v1/internal/pin", `{"model_name":"two","pinned":true}`))
	by("two", "pin")
	p.want(200, p.post("/v1/unload", `{"model_name":"two"}`))
	by("two", "pin")
	p.want(200, p.chat("two"))
	if r := p.chat("one"); r.code() != "slots_pinned_error" {
		t.Errorf("a call's pin does not outlive the unload: %d %s", r.status, r.text)
	}
	p.want(200, p.post("/v1/internal/pin", `{"model_name":"two","pinned":false}`))

	// The latest setting counts, even one that was made before.
	p.want(200, p.post("/v1/load", `{"model_name":"two","pinned":true}`))
	by("two", "load")
	p.want(200, p.post("/v1/internal/pin", `{"model_name":"two","pinned":false}`))
	by("two", "")
	p.want(200, p.chat("one"))
}

func TestUnload(t *testing.T) {
	p := newPool(t, "-1")
	loaded := func() int { return len(p.get("/v1/health").list("all_models_loaded")) }
	r := p.want(200, p.post("/v1/unload", ""))
	if r.json["message"] != "All models unloaded successfully" || len(r.json["unloaded"].([]any)) != 0 {
		t.Errorf("nothing loaded: %s", r.text)
	}
	for _, m := range []string{"one", "two", "vec"} {
		p.want(200, p.post("/v1/load", `{"model_name":"`+m+`"}`))
	}
	for _, body := range []string{`{"model_name":""}`, `{`, `nonsense`, `[]`, `{"model_name":5}`, `{"force":"yes"}`,
		`{"model_name":null}`, `{"name":"one"}`, `{"id":"one"}`, `{"model_id":"one"}`, `{"models":["one"]}`, `{"force":true,"name":"one"}`} {
		if r := p.post("/v1/unload", body); r.status != 400 {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	if loaded() != 3 {
		t.Error("a refused call has unloaded something")
	}
	for _, r := range []reply{p.post("/v1/unload?model=nobody", ""), p.get("/v1/unload?model=nobody")} { // and not all models
		if r.status != 404 || r.code() != "model_not_found" {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
	if r := p.post("/v1/unload", `{"model_name":"nobody"}`); r.status != 404 || r.code() != "model_not_found" {
		t.Errorf("unknown: %d %s", r.status, r.text)
	}
	if r := p.post("/v1/unload", `{"model_name":"slow"}`); r.status != 404 || r.code() != "model_not_loaded" {
		t.Errorf("not loaded: %d %s", r.status, r.text)
	}
	r = p.want(200, p.post("/v1/unload", `{"model":"uno","force":true}`))
	if r.json["message"] != "Model unloaded successfully" || r.json["model_name"] != "one" {
		t.Errorf("one: %s", r.text)
	}
	if loaded() != 2 {
		t.Error("the listing that follows must be exact")
	}
	p.want(200, p.post("/v1/unload", `{"model":"two"}`))
	if p.want(200, p.do("HEAD", "/unload", "")); loaded() != 1 {
		t.Error("HEAD must unload nothing")
	}
	if r := p.want(200, p.get("/unload")); r.text != "OK" || loaded() != 0 {
		t.Errorf("GET /unload: %s", r.text)
	}
}
