package batches

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/web"
)

func requests(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("{\n\"custom_id\": \"r%d\", \"params\": {\"model\": \"m\",\n\"messages\": [\"<%d>\"]}}", i, i))
	}
	return `{"requests": [` + strings.Join(list, ",") + `]}`
}

// message asks a route of message batches as a key.
func (d *desk) message(key byte, serve func(*web.Request) error, id string) (b messageBatch, err error) {
	d.t.Helper()
	err = d.ask(key, serve, id, "", "", &b)
	return b, err
}

// results returns the types of the results by custom id, and their text.
func (d *desk) results(id string) (types map[string]string, text string) {
	d.t.Helper()
	if err := d.ask(1, d.MessagesResults, id, "", "", &text); err != nil {
		d.t.Fatal(err)
	}
	types = map[string]string{}
	for l := range strings.Lines(text) {
		var one messageResult
		if err := json.Unmarshal([]byte(l), &one); err != nil || types[one.CustomID] != "" {
			d.t.Fatalf("%v: %q", err, l)
		}
		types[one.CustomID] = one.Result.Type
	}
	return types, text
}

func (d *desk) startMessages(n int) string {
	d.t.Helper()
	var b messageBatch
	if err := d.ask(1, d.MessagesCreate, "", "", requests(n), &b); err != nil {
		d.t.Fatal(err)
	}
	if want := (messageCounts{Processing: n}); b.Counts != want || b.Status != "in_progress" || !strings.HasPrefix(b.ID, "msgbatch_") || b.ExpiresAt.Sub(b.CreatedAt) != 24*time.Hour {
		d.t.Errorf("%+v", b)
	}
	return b.ID
}

func TestMessageBatch(t *testing.T) {
	d := newDesk(t)
	d.do = func(c Call) Result {
		switch body := string(c.Body); {
		case strings.Contains(body, "<1>"):
			return refuse(api.InvalidRequest)
		case strings.Contains(body, "<2>"):
			return respond(200, "no JSON")
		default:
			return respond(200, `{"echo":`+body+`}`)
		}
	}
	id := d.startMessages(4)
	if _, err := d.message(1, d.MessagesDelete, id); api.As(err).Status != 409 {
		t.Error("an open batch is deleted:", err)
	}
	if err := d.ask(1, d.MessagesResults, id, "", "", nil); api.As(err).Status != 404 {
		t.Error("results of an open batch:", err)
	}
	d.finish(strings.TrimPrefix(id, "msg"))
	d.mu.Lock()
	if d.counted["completed"] != 2 || d.counted["failed"] != 2 {
		t.Errorf("counted: %v", d.counted)
	}
	d.mu.Unlock()
	b, err := d.message(1, d.MessagesGet, id)
	if want := (messageCounts{Succeeded: 2, Errored: 2}); err != nil || b.Status != "ended" || b.Counts != want || b.EndedAt == nil || *b.ResultsURL != "/v1/messages/batches/"+id+"/results" {
		t.Errorf("%+v, %v", b, err)
	}
	types, text := d.results(id)
	if fmt.Sprint(types) != "map[r0:succeeded r1:errored r2:errored r3:succeeded]" || !strings.Contains(text, `"error":{"type":"error","error":{"type":"api_error",`) || !strings.Contains(text, `{"custom_id":"r0","result":{"type":"succeeded","message":{"echo":{"model":"m","messages":["<0>"]}}}}`) {
		t.Error(text)
	}
	if d.calls[0].Path != "/v1/messages" {
		t.Errorf("%+v", d.calls[0])
	}
	second := d.startMessages(1)
	f, _ := d.upload(1, aLine("a", "m"))
	other := d.create(1, f.ID, "24h")
	list := func(query string) (ids []string) {
		var l api.List[messageBatch]
		if err := d.ask(1, d.MessagesList, "", query, "", &l); err != nil {
			t.Fatal(err)
		}
		for _, b := range l.Data {
			ids = append(ids, b.ID)
		}
		if len(ids) > 0 && (*l.FirstID != ids[0] || *l.LastID != ids[len(ids)-1]) {
			t.Errorf("%+v", l)
		}
		return ids
	}
	if got := list(""); !slices.Equal(got, []string{second, id}) {
		t.Error(got)
	}
	if got := list("limit=1&after_id=" + second); !slices.Equal(got, []string{id}) {
		t.Error(got)
	}
	for _, id := range []string{"msg" + other.ID, strings.TrimPrefix(id, "msg"), "msgbatch_x", "../x"} {
		if _, err := d.message(1, d.MessagesGet, id); api.As(err).Status != 404 {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, serve := range []func(*web.Request) error{d.MessagesGet, d.MessagesCancel, d.MessagesDelete, d.MessagesResults} {
		if _, err := d.message(2, serve, id); api.As(err).Status != 404 {
			t.Error("another key:", err)
		}
	}
	if _, err := d.message(1, d.MessagesDelete, id); err != nil {
		t.Error(err)
	}
	if _, err := d.message(1, d.MessagesGet, id); api.As(err).Status != 404 {
		t.Error("it is still there:", err)
	}
	if got := list(""); !slices.Equal(got, []string{second}) {
		t.Error(got)
	}
	if ids, err := d.Service.ids(d.cfg.Tenant(new(owner(1))), filePrefix); len(ids) != 2 || err != nil {
		t.Error("files are left behind:", ids, err)
	}
}

// Requests that did not run say why.
func TestMessageBatchCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.do = func(c Call) Result {
			if strings.Contains(string(c.Body), "<0>") {
				return respond(200, `{}`)
			}
			return refuse(api.Background)
		}
		id := d.startMessages(40)
		time.AfterFunc(time.Hour, func() {
			if b, err := d.message(1, d.MessagesCancel, id); err != nil || b.Status != "canceling" || b.CancelledAt == nil || b.Counts != (messageCounts{Processing: 39, Succeeded: 1}) {
				t.Errorf("%+v, %v", b, err)
			}
		})
		d.finish(strings.TrimPrefix(id, "msg"))
		b, _ := d.message(1, d.MessagesGet, id)
		types, _ := d.results(id)
		if b.Counts != (messageCounts{Succeeded: 1, Canceled: 39}) || len(types) != 40 || types["r0"] != "succeeded" || types["r39"] != "canceled" {
			t.Errorf("%+v, %v", b, types)
		}
		id = d.startMessages(40)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour) // its gateway ends
		_ = d.work(ctx, strings.TrimPrefix(id, "msg"))
		stop()
		d.finish(strings.TrimPrefix(id, "msg"))
		b, _ = d.message(1, d.MessagesGet, id)
		types, _ = d.results(id)
		if b.Counts != (messageCounts{Succeeded: 1, Expired: 39}) || len(types) != 40 || types["r39"] != "expired" {
			t.Errorf("%+v, %v", b, types)
		}
	})
}

func TestInvalidMessageBatches(t *testing.T) {
	d := newDesk(t)
	one := `{"custom_id":"a","params":{}}`
	for body, want := range map[string]string{
		`{"requests":[]}`:                              "no lines",
		`{"requests":[1]}`:                             "must be an object",
		`{"requests":[{"custom_id":"a"}]}`:             "custom_id and params",
		`{"requests":[{"custom_id":1,"params":{}}]}`:   "Request 1: 'custom_id' must be a JSON string",
		`{"requests":[` + one + `,` + one + `]}`:       "Request 2: Another line has the same 'custom_id'",
		`{"requests":[{"custom_id":"a","params":[]}]}`: "must be a JSON object",
	} {
		if err := d.ask(1, d.MessagesCreate, "", "", body, nil); err == nil || api.As(err).Status != 400 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	if used, err := d.countBytes(); used != 0 || err != nil {
		t.Errorf("%d bytes are left behind, %v", used, err)
	}
}
