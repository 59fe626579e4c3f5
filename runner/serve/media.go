package serve

import (
	"bytes"
	"strconv"

	"github.com/valyala/fasthttp"

	"reveille/infra/rpc"
	"reveille/runner/host"
	"reveille/runner/mmcache"
)

// mediaShare is a request's part of its engine's encoder cache; nil counts nothing.
type mediaShare func() (hits, misses int64, exact bool)

// mediaMarks are texts one of which every request with media holds.
var mediaMarks = [...][]byte{[]byte("image"), []byte("audio"), []byte("multimodal_data")}

// beginMedia begins to count the media of a request to an engine with an encoder cache.
func beginMedia(e host.Engine, body []byte) mediaShare {
	cached, ok := e.(interface{ Media() *mmcache.Attachment })
	if !ok || cached.Media() == nil {
		return nil
	}
	for _, m := range mediaMarks {
		if bytes.Contains(body, m) {
			return cached.Media().Request()
		}
	}
	return nil
}

// end tells the counts when the engine's first bytes are there, where they can be told for this request alone.
func (m mediaShare) end(h *fasthttp.ResponseHeader) {
	if m == nil {
		return
	}
	if hits, misses, exact := m(); exact && hits+misses > 0 {
		h.Set(rpc.HeaderMedia, "hit="+strconv.FormatInt(hits, 10)+", miss="+strconv.FormatInt(misses, 10))
	}
}
