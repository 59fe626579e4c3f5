package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// shape is a JSON value's type, with the members of objects and the first item of lists.
func shape(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		return "[" + shape(v[0]) + "]"
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+":"+shape(v[k]))
		}
		return "{" + strings.Join(parts, " ") + "}"
	}
	return fmt.Sprintf("%T", v)
}

// has checks that a response's members have the shapes given as "name:shape …".
func (r reply) has(t *testing.T, members ...string) {
	t.Helper()
	for _, m := range members {
		name, want, _ := strings.Cut(m, "=")
		v, there := r.json[name]
		if !there || shape(v) != want {
			t.Errorf("%s is %s, want %s", name, shape(v), want)
		}
	}
}

const (
	loadedShape = "{backend_url:string checkpoint:string device:string idle_expires_at:number is_busy:bool last_use:number load_ms:number " +
		"model_name:string pid:number pinned:bool recipe:string recipe_options:{batch_delay:number ctx_size:number} runner:string type:string}"
	modelShape = "{aliases:[string] checkpoint:string created:number downloaded:bool id:string labels:[string] " +
		"object:string owned_by:string recipe:string recipe_options:{ctx_size:number} size:number status:{value:string} type:string}"
	runnersShape = "[{devices:string id:string state:string}]"
)

func TestHealthShape(t *testing.T) {
	p := newPool(t, "3 2")
	empty := p.want(200, p.get("/v1/health"))
	for _, r := range empty.list("runners") { // their contents depend on the machine
		if box, _ := r["sandbox"].(map[string]any); box["mode"] == nil {
			t.Errorf("sandbox of %v: %v", r["id"], r["sandbox"])
		}
		if found, _ := r["found"].(map[string]any); found["devices"] == nil {
			t.Errorf("found of %v: %v", r["id"], r["found"])
		}
		delete(r, "sandbox")
		delete(r, "found")
	}
	empty.has(t, "status=string", "version=string", "model_loaded=null", "all_models_loaded=[]",
		"models_loading=[]", "max_models={audio:number embedding:number image:number llm:number reranking:number tts:number}", "queue_length=number", "runners="+runnersShape)
	limits := p.want(200, p.get("/internal/config")).json["max_loaded_models"].(map[string]any)
	for name, want := range map[string]float64{"llm": 3, "embedding": 2, "audio": 1, "image": 1} {
		if got := limits[name]; got != want {
			t.Errorf("max_loaded_models.%s is %v, want %v", name, got, want)
		}
	}
	p.want(200, p.post("/v1/load", `{"model_name":"one","batch_delay":4}`))
	p.want(200, p.chat("two"))
	r := p.want(200, p.get("/api/v0/health"))
	list := r.list("all_models_loaded")
	if len(list) != 2 || list[0]["model_name"] != "two" || r.json["model_loaded"] != "two" {
		t.Fatalf("most recently used first: %s", r.text)
	}
	if plan, ok := list[1]["plan"].(map[string]any); !ok || plan["kind"] == nil || plan["n_batch"] == nil {
		t.Errorf("plan is %v", list[1]["plan"])
	}
	delete(list[1], "plan")
	if got := shape(list[1]); got != loadedShape {
		t.Errorf("item is\n%s, want\n%s", got, loadedShape)
	}
	if url := list[0]["backend_url"].(string); !strings.HasSuffix(url, "/v1") || list[0]["runner"] != "here" || list[0]["pid"].(float64) <= 0 {
		t.Errorf("item: %v", list[0])
	}
	if ttl := list[0]["idle_expires_at"].(float64) - list[0]["last_use"].(float64); ttl < 599.9 || ttl > 600.1 {
		t.Errorf("idle_expires_at is %v s after the last use", ttl)
	}
	// An inference changes the order at once, and not which one was loaded last.
	p.want(200, p.chat("one"))
	if r := p.get("/v1/health"); r.list("all_models_loaded")[0]["model_name"] != "one" || r.json["model_loaded"] != "two" {
		t.Errorf("after a use: %s", r.text)
	}
	if p.want(200, p.do("HEAD", "/v1/health", "")).text != "" {
		t.Error("HEAD has no body")
	}
}

// While a stream runs, its model is busy; afterwards it is not.
func TestHealthWhileStreaming(t *testing.T) {
	p := newPool(t, "1")
	done := make(chan reply, 1)
	go func() {
		done <- p.post("/v1/chat/completions", `{"model":"slow","stream":true,"max_tokens":40,"messages":[{"role":"user","content":"hi"}]}`)
	}()
	p.until("the stream shows", func() bool {
		for _, m := range p.get("/v1/health").list("all_models_loaded") {
			if m["is_busy"] == true {
				return true
			}
		}
		return false
	})
	p.want(200, <-done)
	p.until("it is idle", func() bool {
		return p.only()["is_busy"] == false
	})
}

func TestHealthReportsLoads(t *testing.T) {
	p := newPool(t, "")
	for path, member := range map[string]string{"/internal/config": "max_loaded_models", "/v1/health": "max_models"} {
		if r := p.want(200, p.get(path)); r.json[member] != nil {
			t.Errorf("limits that no host has told: %s", r.text)
		}
	}
	go p.post("/v1/load", `{"model_name":"one"}`)
	p.until("the load shows", func() bool {
		list := p.get("/v1/health").list("models_loading")
		return len(list) == 1 && shape(list[0]) == "{model_name:string since:number state:string type:string waiting:number}" &&
			list[0]["model_name"] == "one" && list[0]["type"] == "llm" && list[0]["waiting"] == 1.0
	})
	if r := p.want(200, p.get("/v1/models/one")); r.json["status"].(map[string]any)["waited"] == nil {
		t.Errorf("status: %s", r.text)
	}
	p.gate.Close()
}

func TestModelsShape(t *testing.T) {
	p := newPool(t, "1")
	r := p.want(200, p.get("/v1/models"))
	if r.json["object"] != "list" {
		t.Error(r.text)
	}
	ids := func(r reply) (out []string) {
		for _, m := range r.list("data") {
			out = append(out, m["id"].(string))
		}
		return out
	}
	if got := ids(r); !slices.Equal(got, []string{"one", "two", "org/three", "slow", "vec", "ears", "broken"}) {
		t.Errorf("models: %v", got)
	}
	if got := ids(p.get("/models?show_all=true")); len(got) != 8 {
		t.Errorf("show_all: %v", got)
	}
	if got := shape(r.json["data"].([]any)[0]); got != modelShape {
		t.Errorf("item is\n%s, want\n%s", got, modelShape)
	}
	for path, id := range map[string]string{"/v1/models/one": "one", "/v1/models/uno": "one", "/v1/models/org/three": "org/three", "/api/v1/models/org%2Fthree": "org/three", "/v1/models/gone": "gone"} {
		r := p.want(200, p.get(path))
		if r.json["id"] != id || r.json["object"] != "model" {
			t.Errorf("%s: %s", path, r.text)
		}
	}
	if r := p.want(404, p.get("/v1/models/nobody")); r.code() != "model_not_found" {
		t.Error(r.text)
	}
	p.want(200, p.chat("one"))
	if r := p.get("/v1/models/one"); r.json["status"].(map[string]any)["value"] != "loaded" {
		t.Error(r.text)
	}
	if r := p.get("/v1/models/org/three"); shape(r.json["status"]) != "{value:string}" || r.header.Get("x-model") != "org/three" {
		t.Error(r.text)
	}
}

func TestStatsShape(t *testing.T) {
	p := newPool(t, "1")
	for n := range 5 { // the last request's figures are there once its client has the response
		p.want(200, p.chat("one"))
		if s := p.get("/v1/stats"); s.json["request_count_total"] != float64(n+1) {
			t.Errorf("after %d requests: %s", n+1, s.text)
		}
	}
	p.want(200, p.chat("two"))
	p.until("the sums are there", func() bool {
		s := p.want(200, p.get("/v1/stats")).json
		return s["request_count_total"] == 6.0 && s["cold_starts_total"] == 2.0 && s["evictions_total"] == 1.0
	})
	p.get("/v1/stats").has(t, "time_to_first_token=number", "tokens_per_second=number", "input_tokens=number", "output_tokens=number",
		"prompt_tokens=number", "cache_tokens=number", "decode_token_times=[]", "request_count_total=number", "input_tokens_total=number",
		"output_tokens_total=number", "prompt_tokens_total=number", "cache_tokens_total=number", "cold_starts_total=number", "evictions_total=number",
		"media_hits_total=number", "media_misses_total=number", "media_cache={}")
}

func TestSystemShape(t *testing.T) {
	p := newPool(t, "")
	r := p.want(200, p.get("/v1/system-info"))
	llama := r.json["recipes"].(map[string]any)["llamacpp"].(map[string]any)
	vulkan := llama["backends"].(map[string]any)["vulkan"].(map[string]any)
	if vulkan["state"] != "unsupported" || shape(vulkan) != "{devices:[string] state:string}" {
		t.Errorf("vulkan: %v", vulkan)
	}
}
