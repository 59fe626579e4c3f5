package app

import (
	"strings"
	"testing"
	"time"
)

func TestInvalidMediaFlagsAreRefused(t *testing.T) {
	h := HostSettings{Host: "h", RunnerAddr: "127.0.0.1:0", Devices: "cpu", MaxLoadedModels: "1", FairAfter: time.Second, DrainTimeout: time.Second, RetireTimeout: time.Second}
	for text, want := range map[string]int64{"": 0, "64MiB": 64 << 20, "0": -1, "0B": -1} {
		h.MMCacheBytes = text
		if p, err := h.parse(); err != nil || p.mediaBytes != want {
			t.Errorf("--mm-cache-bytes %q: %d %v, want %d", text, p.mediaBytes, err, want)
		}
	}
	h.MMQuota, h.MMMaxEntry, h.MMTTL = "0", "8MiB", time.Hour
	if p, err := h.parse(); err != nil || p.mediaQuota != -1 || p.mediaEntry != 8<<20 {
		t.Errorf("%v %d %d", err, p.mediaQuota, p.mediaEntry)
	}
	h.MMCacheBytes, h.MMLookupWait, h.MMQuota, h.MMMaxEntry, h.MMTTL = "much", time.Minute, "some", "0", time.Second
	_, err := h.parse()
	for _, flag := range []string{"--mm-cache-bytes", "--mm-lookup-wait 1m0s", "--mm-quota", "--mm-max-entry 0", "--mm-ttl 1s"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("a mistake in %s was passed over: %v", flag, err)
		}
	}
}
