package attack

import (
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// TestRegisterNames registers weights under names that an URL, a command line or a template would read as something else.
func TestRegisterNames(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{
		Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t), "--register-allow", "hf://", "--register-allow", "s3://"},
	})
	for _, checkpoint := range []string{
		"hf://lab/repo/-x.gguf", "hf://lab/repo/%2f..%2fx.gguf", "hf://lab/repo/..%2f..%2fapi/whoami", "hf://lab/repo/{api_key}", "hf://lab/repo/{api_key}.gguf",
		"hf://127.0.0.1/repo/a.gguf", "hf://127.1/repo/a.gguf", "hf://lab@127.0.0.1/repo/a.gguf", "hf://lab:80/repo/a.gguf", "hf://lab/repo/../../x/a.gguf",
		"hf://lab/repo/a..gguf", "hf://lab/repo/a.gguf?x=y", "hf://lab/repo/a.gguf#", "hf://lab/repo/a.gguf@-x", "hf://lab/repo/a.gguf@a/../../b", "hf://lab/repo/.env",
		"hf://lab/repo/config.py", "hf://lab/repo//a.gguf", "hf:///repo/a.gguf", "hf://lab", "hf://lab/re\\po/a.gguf", "hf://lab/repo/a\u2044b.gguf",
		"s3://127.0.0.1/a.gguf", "s3://bucket/-x.gguf", "s3://bucket/%2e%2e/a.gguf", "s3://bucket/../a.gguf", "s3://bucket/{api_key}.gguf", "s3://Bucket/a.gguf",
		"s3://bucket/credentials", "s3://b/a.gguf", "s3://bucket/a.gguf?versionId=1",
	} {
		for _, path := range []string{"/v1/models/register", "/v1/pull"} {
			for _, field := range []string{`"checkpoint":"` + checkpoint + `"`, `"checkpoints":{"main":"hf://lab/repo/a.gguf","mmproj":"` + checkpoint + `"}`} {
				a := call(t, "POST", s.URL+path, `{"model_name":"user.x","recipe":"llamacpp","device":"cpu",`+field+`}`, bearer(manageKey))
				refused(t, path+" "+field, a, 400)
			}
		}
	}
	for _, checkpoint := range []string{"hf://01-ai/Yi-6B_x.y-GGUF/Q4_K_M/a-00001-of-00002.gguf@refs/pr/1", "hf://lab/repo", "s3://my.bucket/models/a.gguf"} {
		a := call(t, "POST", s.URL+"/v1/models/register", `{"model_name":"user.x","recipe":"llamacpp","device":"cpu","checkpoint":"`+checkpoint+`"}`, bearer(manageKey))
		if a.Status != 200 {
			t.Errorf("%s: %v", checkpoint, a)
		}
	}
}

// TestTightenedRegisterAllow registers a model, starts the pool again with a narrower list, and finds the model refused
// with the reason, kept, and served again once the list allows it.
func TestTightenedRegisterAllow(t *testing.T) {
	redis := testenv.StartRedis(t)
	keys := withKeys(t)
	start := func(allow string) *testenv.System {
		return testenv.Start(t, testenv.Spec{
			Redis: redis, Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost),
			Args: []string{keys, "--runner-secret", "secret-of-this-pool-0123456789abcdef", "--register-allow", allow},
		})
	}
	ask := func(s *testenv.System, name string) calls.Answer {
		return call(t, "POST", s.URL+"/v1/load", `{"model_name":"`+name+`"}`, bearer(manageKey))
	}
	s := start("hf://lab")
	for _, name := range []string{"user.far", "user.gone"} {
		a := call(t, "POST", s.URL+"/v1/models/register", `{"model_name":"`+name+`","recipe":"standin","device":"cpu","checkpoint":"hf://lab/far/far.gguf"}`, bearer(manageKey))
		if a.Status != 200 {
			t.Fatalf("register: %v", a)
		}
	}
	s.Stop()

	s = start("hf://other")
	const why = "is registered but not served: its weights do not lie where --register-allow allows them"
	kit.Becomes(t, "the model is withheld", true, func() bool { return strings.Contains(string(ask(s, "user.far").Body), why) })
	for _, name := range []string{"user.far", "far"} {
		a := call(t, "POST", s.URL+"/v1/chat/completions", `{"model":"`+name+`","messages":[{"role":"user","content":"x"}]}`, bearer(inferKey))
		refused(t, name, a, 404)
		if !strings.Contains(string(a.Body), why) || strings.Contains(string(a.Body), "hf://") {
			t.Errorf("%s: %v", name, a)
		}
	}
	if a := call(t, "GET", s.URL+"/v1/models?show_all=true", "", bearer(manageKey)); strings.Contains(string(a.Body), "user.far") {
		t.Errorf("the model is listed: %v", a)
	}
	if a := call(t, "POST", s.URL+"/v1/delete", `{"model_name":"user.gone"}`, bearer(manageKey)); a.Status != 200 {
		t.Errorf("a model that is not served cannot be deleted: %v", a)
	}
	s.Stop()

	s = start("hf://lab")
	kit.Becomes(t, "the model is back", true, func() bool {
		return strings.Contains(string(call(t, "GET", s.URL+"/v1/models?show_all=true", "", bearer(manageKey)).Body), "user.far")
	})
	if a := ask(s, "user.gone"); strings.Contains(string(a.Body), why) || a.Status != 404 {
		t.Errorf("the deleted model: %v", a)
	}
}
