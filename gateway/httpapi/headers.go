package httpapi

import (
	"strconv"
	"strings"
	"time"

	"reveille/gateway/api"
)

// modelHeaders sets the headers that every response of a model carries about how it was served. Call it before the head
// is sent.
func (x *exchange) modelHeaders() {
	h := &x.call.Ctx.Response.Header
	h.SetCanonical(api.CanonicalModel, []byte(x.call.model.ID))
	h.SetCanonical(api.CanonicalModelState, []byte(x.routing.state))
	host, waited, load := x.routing.endpoint.Host, x.routing.info.Waited, time.Duration(0)
	if w := x.routing.waiter.Load(); w != nil { // a stream that starts before its model is ready
		st := w.Progress()
		host = st.Host
		waited += st.Waited
		load = min(st.Loading, waited)
	} else if x.routing.info.Cold {
		load = min(time.Duration(x.routing.info.LoadMS)*time.Millisecond, waited)
	}
	x.routing.host = host
	if host != "" {
		h.SetCanonical(api.CanonicalHost, []byte(host))
	}
	var buf [96]byte
	ms := func(b []byte, d time.Duration) []byte { return strconv.AppendInt(b, d.Milliseconds(), 10) }
	h.SetCanonical(api.CanonicalQueueMS, ms(buf[:0], waited-load))
	h.SetCanonical(api.CanonicalLoadMS, ms(buf[:0], load))
	b := ms(append(buf[:0], "queue;dur="...), waited-load)
	b = ms(append(b, ", load;dur="...), load)
	b = ms(append(b, ", ttft;dur="...), time.Since(x.call.Began))
	h.SetCanonical(api.CanonicalServerTiming, b)
	if x.routing.cold {
		h.Set(api.HeaderColdStart, "1")
		x.queueHeader()
	}
	if evicted := x.call.Key.Visible(x.routing.info.Evicted); len(evicted) > 0 {
		h.Set(api.HeaderEvicted, strings.Join(evicted, ","))
	}
}

func (x *exchange) queueHeader() {
	x.call.Ctx.Response.Header.Set(api.HeaderQueueLength, strconv.Itoa(x.routing.ahead))
}
