package trace

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of what is kept and sent.
const (
	queued    = 4096             // spans that wait; more are dropped
	batch     = 512              // spans in one request
	every     = time.Second      // longest that a span waits for others
	timeout   = 10 * time.Second // of a request
	flush     = 2 * time.Second  // longest that Run sends after its context has ended
	maxAnswer = 64 << 10         // bytes of an answer that are read
	firstWait = time.Second      // pause after a request that failed, doubled up to lastWait
	lastWait  = 30 * time.Second
)

// Tracer sends spans to a collector. Make it with New and run it with Run. It is safe for concurrent use.
type Tracer struct {
	url      string
	resource []jsonAttr
	client   http.Client
	log      *slog.Logger
	ended    chan *Span
	dropped  atomic.Int64 // since the last line of the log
}

// New makes a tracer of a service that posts to a collector: http://collector:4318, or with a path if it is not OTLP's own,
// /v1/traces. It returns nil, which records nothing, for an empty address.
func New(address, service, version, instance string, log *slog.Logger) (*Tracer, error) {
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, errors.New("--traces: want the URL of an OpenTelemetry collector, such as http://127.0.0.1:4318, without a password")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	t := &Tracer{url: u.String(), log: log, ended: make(chan *Span, queued)}
	t.client = http.Client{Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, a := range []attr{{key: "service.name", text: service}, {key: "service.version", text: version}, {key: "service.instance.id", text: instance}} {
		if a.isText = true; a.text != "" {
			t.resource = append(t.resource, a.json())
		}
	}
	return t, nil
}

// Run sends what was recorded until ctx ends, and for a short while what is left then. A nil Tracer returns at once.
func (t *Tracer) Run(ctx context.Context) {
	if t == nil {
		return
	}
	defer t.client.CloseIdleConnections()
	pause := firstWait
	for ctx.Err() == nil {
		spans := t.collect(ctx)
		if len(spans) == 0 {
			continue
		}
		// A request that has begun may end: its timeout is short.
		if err := t.post(context.WithoutCancel(ctx), spans); err == nil {
			pause = firstWait
			continue
		} else {
			t.dropped.Add(int64(len(spans)))
			t.log.Warn("traces are not sent", "error", err, "dropped", t.dropped.Swap(0), "pause", pause)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, lastWait)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), flush)
	defer cancel()
	for spans := t.waiting(nil); len(spans) > 0 && t.post(end, spans) == nil; spans = t.waiting(nil) {
	}
}

// collect waits for a span and for those that end soon after it. It returns none once ctx has ended.
func (t *Tracer) collect(ctx context.Context) []*Span {
	select {
	case s := <-t.ended:
		for end := time.Now().Add(every); len(t.ended) < batch-1 && time.Now().Before(end) && ctx.Err() == nil; {
			select {
			case <-time.After(every / 20):
			case <-ctx.Done():
			}
		}
		return t.waiting([]*Span{s})
	case <-ctx.Done():
		return nil
	}
}

// waiting appends the spans that wait, up to a full batch.
func (t *Tracer) waiting(spans []*Span) []*Span {
	for len(spans) < batch {
		select {
		case s := <-t.ended:
			spans = append(spans, s)
		default:
			return spans
		}
	}
	return spans
}

func (t *Tracer) post(ctx context.Context, spans []*Span) error {
	body, err := json.Marshal(t.message(spans))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // so that the connection can be used again
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answers %d", resp.StatusCode)
	}
	return nil
}

// message is OTLP's ExportTraceServiceRequest: in JSON, ids are hexadecimal and 64-bit numbers are strings.
func (t *Tracer) message(spans []*Span) any {
	all := make([]jsonSpan, len(spans))
	for i, s := range spans {
		all[i] = s.json()
	}
	return map[string]any{"resourceSpans": []any{map[string]any{
		"resource":   map[string]any{"attributes": t.resource},
		"scopeSpans": []any{map[string]any{"scope": map[string]string{"name": "reveille"}, "spans": all}},
	}}}
}

type jsonSpan struct {
	TraceID    string         `json:"traceId"`
	SpanID     string         `json:"spanId"`
	Parent     string         `json:"parentSpanId,omitempty"`
	Name       string         `json:"name"`
	Kind       Kind           `json:"kind"`
	Start      string         `json:"startTimeUnixNano"`
	End        string         `json:"endTimeUnixNano"`
	Attributes []jsonAttr     `json:"attributes,omitempty"`
	Status     map[string]int `json:"status,omitempty"`
}

type jsonAttr struct {
	Key   string            `json:"key"`
	Value map[string]string `json:"value"`
}

func (s *Span) json() jsonSpan {
	j := jsonSpan{
		TraceID: hex.EncodeToString(s.own.trace[:]), SpanID: hex.EncodeToString(s.own.span[:]), Name: s.name, Kind: s.kind,
		Start: strconv.FormatInt(s.start.UnixNano(), 10), End: strconv.FormatInt(s.end.UnixNano(), 10),
	}
	if s.parent != [8]byte{} {
		j.Parent = hex.EncodeToString(s.parent[:])
	}
	for _, a := range s.attrs {
		j.Attributes = append(j.Attributes, a.json())
	}
	if s.failed {
		j.Status = map[string]int{"code": 2}
	}
	return j
}

func (a attr) json() jsonAttr {
	if a.isText {
		return jsonAttr{a.key, map[string]string{"stringValue": strings.ToValidUTF8(a.text, "\uFFFD")}}
	}
	return jsonAttr{a.key, map[string]string{"intValue": strconv.FormatInt(a.number, 10)}}
}
