package httpapi

import (
	"bytes"

	"reveille/infra/rpc"
)

// Every request with media contains at least one of mediaMarks.
var mediaMarks = [...][]byte{[]byte("image"), []byte("audio"), []byte("multimodal_data")}

// mayHaveMedia reports whether the body can contain images or audio.
func (a *activeRequest) mayHaveMedia() bool {
	for _, m := range mediaMarks {
		if bytes.Contains(a.body, m) {
			return true
		}
	}
	return false
}

// beginMedia announces the request to its engine's encoder cache, if there is one.
func (a *activeRequest) beginMedia() {
	if cache := a.ref.Engine.Features().Media; cache != nil {
		a.media = cache.Begin(string(a.field(rpc.HeaderCacheTenant)), a.mayHaveMedia())
	}
}
