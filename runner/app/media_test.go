package app

import (
	"strings"
	"testing"
	"time"

	"reveille/runner/mmcache"
)

func TestMediaFlags(t *testing.T) {
	h := Host{Host: "h", RunnerAddr: "127.0.0.1:0", Devices: "cpu", MaxLoadedModels: "1", FairAfter: time.Second, DrainTimeout: time.Second}
	for text, want := range map[string]int64{"": mmcache.DefaultBytes, "64MiB": 64 << 20, "0": -1, "0B": -1} {
		h.MMCacheBytes = text
		if p, err := h.parse(); err != nil || p.mediaBytes != want {
			t.Errorf("--mm-cache-bytes %q: %d %v, want %d", text, p.mediaBytes, err, want)
		}
	}
	h.MMCacheBytes, h.MMLookupWait = "much", time.Minute
	if _, err := h.parse(); err == nil || !strings.Contains(err.Error(), "--mm-cache-bytes") || !strings.Contains(err.Error(), "--mm-lookup-wait 1m0s") {
		t.Errorf("mistakes were passed over: %v", err)
	}
}
