package httpapi

import (
	"bytes"

	"reveille/infra/rpc"
	"reveille/runner/mmcache"
)

// Every request with media contains at least one of mediaMarks.
var mediaMarks = [...][]byte{[]byte("image"), []byte("audio"), []byte("multimodal_data")}

// holdsMedia reports whether the body may contain images or audio.
func (x *exchange) holdsMedia() bool {
	for _, m := range mediaMarks {
		if bytes.Contains(x.body, m) {
			return true
		}
	}
	return false
}

// beginMedia announces the request to its engine's encoder cache, if there is one.
func (x *exchange) beginMedia() {
	cached, ok := x.ref.Engine.(interface{ Media() *mmcache.Attachment })
	if ok && cached.Media() != nil {
		x.media = cached.Media().Begin(string(x.field(rpc.HeaderCacheTenant)), x.holdsMedia())
	}
}
