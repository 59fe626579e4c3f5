package httpapi

import (
	"bytes"

	"reveille/runner/host"
	"reveille/runner/mmcache"
)

// Every request with media contains at least one of mediaMarks.
var mediaMarks = [...][]byte{[]byte("image"), []byte("audio"), []byte("multimodal_data")}

// holdsMedia reports whether a body may contain images or audio.
func holdsMedia(body []byte) bool {
	for _, m := range mediaMarks {
		if bytes.Contains(body, m) {
			return true
		}
	}
	return false
}

// beginMedia announces a tenant's request to its engine's encoder cache. It returns nil if there is none.
func beginMedia(e host.Engine, tenant, body []byte) *mmcache.Request {
	cached, ok := e.(interface{ Media() *mmcache.Attachment })
	if !ok || cached.Media() == nil {
		return nil
	}
	return cached.Media().Begin(string(tenant), holdsMedia(body))
}
