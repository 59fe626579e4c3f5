package httpapi

import (
	"strings"
	"testing"
)

// Only keys with manage see paths, addresses, processes and command lines. Without a key the full health is refused.
func TestManagersSeeHosts(t *testing.T) {
	p := newPool(t, "1", func(c *Config) { c.Keys = keyFile(t, localKey+" manage\ninfer-key infer\n") })
	p.want(200, p.post("/v1/load", `{"model_name":"two"}`))
	p.want(200, p.post("/v1/models/one/options", `{"batch_delay":3}`))
	if _, err := p.redis.SAdd("rv:{main}:hosts", "off"); err != nil {
		t.Fatal(err)
	}
	if err := p.store.ReportBoot(t.Context(), "off", "no engines"); err != nil {
		t.Fatal(err)
	}
	for path, hidden := range map[string][]string{"/v1/health": {`"backend_url":"http`, `"pid":`, `"sandbox"`, `"found"`, `"boot":{"state":"failed","reason":"no engines","since":1`}, "/running": {`"cmd":"/`, `"proxy":"http`}} {
		p.want(401, p.with("", "GET", path, ""))
		all, some := p.want(200, p.get(path)).text, p.want(200, p.with("infer-key", "GET", path, "")).text
		some = strings.ReplaceAll(some, `"pid":0`, "")
		for _, text := range hidden {
			if !strings.Contains(all, text) || strings.Contains(some, text) {
				t.Errorf("%s: %s is for managers:\n%s\n%s", path, text, all, some)
			}
		}
	}
	for _, path := range []string{"/health", "/live", "/ready"} {
		if r := p.want(200, p.with("", "GET", path, "")); len(r.json) != 1 {
			t.Errorf("%s: %s", path, r.text)
		}
	}
}
