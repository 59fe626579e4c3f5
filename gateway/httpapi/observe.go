package httpapi

import (
	"bytes"
	"encoding/hex"
	"time"

	"reveille/gateway/accesslog"
	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/trace"
)

// observed is what the access log and the trace say of a request; nil where neither is kept. It belongs to the
// request's goroutine. Methods of nil do nothing.
type observed struct {
	entry            accesslog.Entry
	span             *trace.Span // of the request; nil like the others where it is not traced
	hold             *trace.Span // of its wait at the gate
	relay            *trace.Span // of its time at a runner
	endsWithResponse bool        // the request ends with the response's stream or WebSocket, not with the handler
}

// observe starts the access log's entry of a request, and its trace if its route runs a model.
func (s *Server) observe(r *request) *observed {
	if s.cfg.AccessLog == nil && s.cfg.Tracer == nil {
		return nil
	}
	h := &r.Ctx.Request.Header
	_, path := splitTarget(h.RequestURI())
	path, _, _ = bytes.Cut(path, []byte("?"))
	o := &observed{entry: accesslog.Entry{
		Began: r.Began, Request: r.ID, Method: string(h.Method()), Path: string(path), Route: r.RouteName(), Client: r.Ctx.RemoteIP().String(),
		UserAgent: string(h.UserAgent()), BytesIn: int64(max(0, h.ContentLength())),
	}}
	if route := r.Match.Route; route != nil && route.Inference {
		o.span = s.cfg.Tracer.Start(h.Peek(trace.Header), methodOf(h.Method())+" "+route.Path, r.Began)
		o.entry.Trace = o.span.Trace()
	}
	return o
}

// setError records the error that the client gets.
func (o *observed) setError(e *api.Error) {
	if o != nil {
		o.entry.Code = e.Code
	}
}

// setEndsWithResponse records that the end of the response's stream or WebSocket ends the request.
func (o *observed) setEndsWithResponse() {
	if o != nil {
		o.endsWithResponse = true
	}
}

// beginWait starts a wait at the gate.
func (o *observed) beginWait() {
	if o != nil {
		o.hold = o.span.Child(trace.Internal, "hold", time.Now())
	}
}

// stageSpans names the spans of the stages of a wait.
var stageSpans = map[string]string{scheduling.StageQueued: "queue", scheduling.StageWaking: "wake", scheduling.StagePulling: "pull", scheduling.StageLoading: "load"}

// endWait ends the wait, with the stages that it went through.
func (o *observed) endWait(info scheduling.LoadInfo, err error) {
	if o == nil || o.hold == nil {
		return
	}
	now := time.Now()
	entered := now.Add(-info.Waited)
	for i, stage := range info.Stages {
		end := now
		if i+1 < len(info.Stages) {
			end = info.Stages[i+1].From
		}
		if !end.After(entered) { // before this request came
			continue
		}
		from := stage.From
		if from.Before(entered) {
			from = entered
		}
		o.hold.Child(trace.Internal, stageSpans[stage.Stage], from).End(end)
	}
	if err != nil {
		o.hold.Fail()
	}
	o.hold.End(now)
	o.hold = nil
}

// beginAttempt starts an attempt at a runner, and appends the trace context that it gets.
func (o *observed) beginAttempt(x *exchange, dst []byte) []byte {
	if o == nil || o.span == nil {
		return dst
	}
	now := time.Now()
	o.relay.End(now)
	o.relay = o.span.Child(trace.Client, "relay", now)
	o.relay.Text("reveille.host", x.routing.endpoint.Host)
	return o.relay.AppendContext(dst)
}

// endExchange records how an exchange ended.
func (o *observed) endExchange(x *exchange, first time.Duration, err error) {
	if o == nil {
		return
	}
	now, e := time.Now(), &o.entry
	e.Model, e.Host, e.Cold = x.call.model.ID, x.routing.endpoint.Host, &x.routing.cold
	e.Waited, e.FirstByte = accesslog.Milliseconds(x.routing.info.Waited), accesslog.Milliseconds(first)
	if x.routing.info.Cold {
		e.Load = accesslog.Milliseconds(x.routing.info.LoadMS) * accesslog.Milliseconds(time.Millisecond)
	}
	e.Broken = err != nil && o.endsWithResponse
	if x.responded && x.translator == nil {
		e.BytesOut = x.recorder.bytes
	}
	if o.hold != nil { // it left
		o.endWait(x.routing.info, err)
	}
	if err != nil {
		o.relay.Fail()
	}
	o.relay.End(now)
	o.relay = nil
	o.span.Text("gen_ai.request.model", e.Model)
	o.span.Text("reveille.host", e.Host)
	if x.routing.cold {
		o.span.Text("reveille.cold", "true")
	}
	if o.endsWithResponse {
		o.end(x.call.request)
	}
}

// setUsage records the tokens that a response reports.
func (o *observed) setUsage(input, output, cached int64) {
	if o != nil {
		o.entry.TokensIn, o.entry.TokensOut, o.entry.TokensFromCache = input, output, cached
		o.span.Number("gen_ai.usage.input_tokens", input)
		o.span.Number("gen_ai.usage.output_tokens", output)
	}
}

// end writes the line and ends the trace.
func (o *observed) end(r *request) {
	if o == nil {
		return
	}
	now, e := time.Now(), &o.entry
	e.Duration = accesslog.Milliseconds(now.Sub(e.Began))
	e.Status = r.Ctx.Response.StatusCode()
	if body, is := r.Ctx.Response.BodyStream().(*translatedBody); is {
		e.BytesOut = body.Size()
	} else if !o.endsWithResponse && !r.Ctx.Response.IsBodyStream() {
		e.BytesOut = int64(len(r.Ctx.Response.Body()))
	}
	if r.Account != nil {
		e.Key = hex.EncodeToString(r.Key.Digest[:4])
	}
	r.s.cfg.AccessLog.Write(*e)
	if o.span == nil {
		return
	}
	o.span.Text("http.request.method", e.Method)
	o.span.Text("http.route", r.Match.Route.Path)
	o.span.Text("reveille.request", e.Request)
	o.span.Text("error.type", e.Code)
	o.span.Number("http.response.status_code", int64(e.Status))
	if e.Status >= 500 || e.Broken {
		o.span.Fail()
	}
	o.span.End(now)
}
