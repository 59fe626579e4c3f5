package front

import (
	"strconv"
	"strings"
	"time"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
)

// modelHeaders sets what every model-bound answer tells about its way. Call it before the head goes out.
func (x *exchange) modelHeaders() {
	h := &x.ctx.Response.Header
	h.Set(wire.HeaderModel, x.model.ID)
	h.Set(wire.HeaderModelState, x.state)
	host, waited, load := x.route.Host, x.info.Waited, time.Duration(0)
	if w := x.waiter.Load(); w != nil { // a stream that begins before its model is ready
		st := w.Stage()
		host = st.Host
		waited += st.Waited
		load = min(st.Loading, waited)
	} else if x.info.Cold {
		load = min(time.Duration(x.info.LoadMS)*time.Millisecond, waited)
	}
	if host != "" {
		h.Set(wire.HeaderRunner, host)
	}
	var buf [96]byte
	ms := func(b []byte, d time.Duration) []byte { return strconv.AppendInt(b, d.Milliseconds(), 10) }
	h.SetBytesV(wire.HeaderQueueMS, ms(buf[:0], waited-load))
	h.SetBytesV(wire.HeaderLoadMS, ms(buf[:0], load))
	b := ms(append(buf[:0], "queue;dur="...), waited-load)
	b = ms(append(b, ", load;dur="...), load)
	b = ms(append(b, ", ttft;dur="...), time.Since(x.began))
	h.SetBytesV(wire.HeaderServerTiming, b)
	if x.cold {
		h.Set(wire.HeaderColdStart, "1")
		x.queueHeader()
	}
	if len(x.info.Evicted) > 0 {
		h.Set(wire.HeaderEvicted, strings.Join(x.info.Evicted, ","))
	}
}

func (x *exchange) queueHeader() {
	x.ctx.Response.Header.Set(wire.HeaderQueueLength, strconv.Itoa(x.ahead))
}

// rename puts the name of the model that answers into a JSON body.
func (c *call) rename() error {
	if c.hit.Route.Body != wire.BodyJSON {
		return nil
	}
	body, err := peek.SetString(c.body, "model", c.model.ID)
	if err != nil {
		return invalidJSON(err)
	}
	c.body = body
	return nil
}
