package batches

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime/multipart"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/gateway/web"
)

// desk is a service whose lines the test runs.
type desk struct {
	*Service
	t *testing.T

	mu      sync.Mutex
	calls   []Call
	do      func(Call) Result
	revoked atomic.Bool
	hours   time.Time // when they begin; zero: never
	counted map[string]int
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, counted: map[string]int{}}
	d.do = func(c Call) Result { return respond(200, `{"echo":`+string(c.Body)+`}`) }
	d.reopen(t.TempDir())
	return d
}

// reopen has another gateway serve the folder.
func (d *desk) reopen(dir string) {
	d.Service = New(Config{
		Dir: dir, MaxBytes: 1 << 30, MaxHeld: 1 << 30, Log: slog.New(slog.DiscardHandler),
		Tenant: func(k *keys.Key) string { return hex.EncodeToString(k.Digest[:4]) },
		Key: func(digest [sha256.Size]byte) keys.Key {
			if d.revoked.Load() {
				return keys.Key{}
			}
			return keys.Key{Digest: digest, Scopes: keys.Infer}
		},
		Do: func(_ context.Context, c Call) Result {
			d.mu.Lock()
			d.calls = append(d.calls, c)
			do := d.do
			d.mu.Unlock()
			return do(c)
		},
		Hours: func(now time.Time) bool { return !d.hours.IsZero() && !now.Before(d.hours) },
		Count: func(outcome string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.counted[outcome]++
		},
	})
}

func respond(status int, body string) Result {
	return Result{Status: status, Request: "req_1", Body: []byte(body), Release: func() {}}
}

func refuse(k api.Kind) Result {
	e := api.New(k, "refused")
	r := respond(e.Status, string(api.OpenAI.Body(e, "req_1")))
	r.Err = e
	return r
}

// owner is a key, by a number.
func owner(n byte) keys.Key { return keys.Key{Digest: [32]byte{n}, Scopes: keys.Infer} }

// ask makes a request with a key, and decodes its response into out.
func (d *desk) ask(key byte, serve func(*web.Request) error, id, query, body string, out any) error {
	d.t.Helper()
	ctx := &fasthttp.RequestCtx{}
	ctx.Request.SetRequestURI("/v1/x?" + query)
	ctx.Request.SetBodyString(body)
	match := api.NewRouter([]*api.Route{{Name: "x", Pattern: "POST /x", Body: api.BodyJSON}}).Match("POST", "/v1/x")
	match.ID = id
	r := &web.Request{Server: &web.Server{CountResponse: func(string, int) {}}, Ctx: ctx, Key: owner(key), Match: match}
	if err := serve(r); err != nil {
		return err
	}
	if text, is := out.(*string); is {
		*text = string(ctx.Response.Body())
		return nil
	}
	if err := json.Unmarshal(ctx.Response.Body(), out); err != nil {
		d.t.Fatalf("%v: %s", err, ctx.Response.Body())
	}
	return nil
}

// upload uploads a file and returns its id.
func (d *desk) upload(key byte, text string, fields ...string) (f File, err error) {
	d.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if len(fields) == 0 {
		fields = []string{"purpose", "batch"}
	}
	part, _ := form.CreateFormFile("file", "in.jsonl")
	_, _ = part.Write([]byte(text))
	for i := 0; i < len(fields); i += 2 {
		_ = form.WriteField(fields[i], fields[i+1])
	}
	_ = form.Close()
	err = d.ask(key, func(r *web.Request) error {
		r.Ctx.Request.Header.SetContentType(form.FormDataContentType())
		return d.FileCreate(r, &body)
	}, "", "", "", &f)
	return f, err
}

const chat = "/v1/chat/completions"

// create makes a batch of a file.
func (d *desk) create(key byte, file, window string) Batch {
	d.t.Helper()
	var b Batch
	body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":%q,"completion_window":%q,"metadata":{"a":"b"}}`, file, chat, window)
	if err := d.ask(key, d.BatchCreate, "", "", body, &b); err != nil {
		d.t.Fatal(err)
	}
	return b
}

// start makes a batch with these lines.
func (d *desk) start(window string, lines ...string) Batch {
	d.t.Helper()
	f, err := d.upload(1, strings.Join(lines, "\n"))
	if err != nil {
		d.t.Fatal(err)
	}
	return d.create(1, f.ID, window)
}

func (d *desk) get(id string) (b Batch) {
	d.t.Helper()
	if err := d.ask(1, d.BatchGet, id, "", "", &b); err != nil {
		d.t.Fatal(err)
	}
	return b
}

// work runs a batch in this gateway until it has ended or ctx ends.
func (d *desk) work(ctx context.Context, id string) error {
	return d.run(ctx, d.cfg.Tenant(new(owner(1))), id)
}

// finish runs a batch to its end.
func (d *desk) finish(id string) Batch {
	d.t.Helper()
	if err := d.work(d.t.Context(), id); err != nil {
		d.t.Fatal(err)
	}
	return d.get(id)
}

// ids returns the custom ids in a file.
func (d *desk) ids(id *string) (ids []string) {
	d.t.Helper()
	if id == nil {
		return nil
	}
	var text string
	if err := d.ask(1, d.FileContent, *id, "", "", &text); err != nil {
		d.t.Fatal(err)
	}
	for l := range strings.Lines(text) {
		var o outcome
		if err := json.Unmarshal([]byte(l), &o); err != nil {
			d.t.Fatalf("%v: %q", err, l)
		}
		ids = append(ids, o.CustomID)
	}
	return ids
}

func aLine(id, model string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":{"model":%q,"messages":[]}}`, id, chat, model)
}

func numbered(from, to int, model string) (lines, ids []string) {
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprintf("l%d", i))
		lines = append(lines, aLine(ids[len(ids)-1], model))
	}
	return lines, ids
}

func TestBatch(t *testing.T) {
	d := newDesk(t)
	a, _ := numbered(0, 30, "a")
	b, _ := numbered(30, 60, "b")
	var mixed, want []string
	for i := range a {
		mixed = append(mixed, a[i], "", b[i])
	}
	_, first := numbered(0, 30, "")
	_, second := numbered(30, 60, "")
	d.do = func(c Call) Result {
		if bytes.Contains(c.Body, []byte(`"b"`)) {
			return refuse(api.ModelNotFound)
		}
		return respond(200, `{"ok": true}`)
	}
	id := d.start("24h", mixed...).ID
	got := d.finish(id)
	want = first
	if got.Status != completed || got.RequestCounts != (counts{60, 30, 30}) || got.CompletedAt == nil || got.Metadata["a"] != "b" {
		t.Errorf("%+v", got)
	}
	if ids := d.ids(got.OutputFileID); !slices.Equal(ids, want) {
		t.Errorf("output: %v", ids)
	}
	if ids := d.ids(got.ErrorFileID); !slices.Equal(ids, second) {
		t.Errorf("errors: %v", ids)
	}
	var text string
	_ = d.ask(1, d.FileContent, *got.ErrorFileID, "", "", &text)
	if !strings.Contains(text, `"response":{"status_code":404,"request_id":"req_1","body":{"error":{"message":"refused"`) {
		t.Error(text[:min(len(text), 300)])
	}
	for i, c := range d.calls {
		if want := fmt.Sprintf(`"model":%q`, []string{"a", "b"}[i/30]); !bytes.Contains(c.Body, []byte(want)) && (i < 30-window || i > 30+window) {
			t.Errorf("call %d: %s", i, c.Body)
		}
	}
	if d.counted[completed] != 30 || d.counted[failed] != 30 {
		t.Error(d.counted)
	}
}

// A batch that was killed at any byte of its last outcomes resumes where they end.
func TestResume(t *testing.T) {
	d := newDesk(t)
	lines, want := numbered(0, 6, "a")
	d.do = func(c Call) Result { return respond(200, `{"a":1}`) }
	done := d.finish(d.start("24h", lines...).ID)
	tenant := d.cfg.Tenant(new(owner(1)))
	whole, err := os.ReadFile(d.path(tenant, *done.OutputFileID))
	if err != nil {
		t.Fatal(err)
	}
	from := bytes.LastIndexByte(whole[:bytes.LastIndexByte(whole[:len(whole)-1], '\n')], '\n') // the last two lines
	for cut := from; cut <= len(whole); cut++ {
		b := d.start("24h", lines...)
		var s stored
		if err := d.read(tenant, b.ID, &s); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.path(tenant, s.Output), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		d.reopen(d.cfg.Dir)
		if got := d.finish(b.ID); got.Status != completed || !slices.Equal(d.ids(got.OutputFileID), want) {
			t.Fatalf("cut at %d of %d: %v %v", cut, len(whole), got.Status, d.ids(got.OutputFileID))
		}
	}
}

// Gateways that are stopped at any time, and that share the folder, write one outcome for each line.
func TestManyGateways(t *testing.T) {
	d := newDesk(t)
	lines, want := numbered(0, 400, "a")
	d.do = func(Call) Result { time.Sleep(time.Millisecond); return respond(200, `{}`) }
	id := d.start("24h", lines...).ID
	other := newDesk(t)
	other.reopen(d.cfg.Dir)
	other.do = d.do
	for range 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		var both sync.WaitGroup
		for _, g := range []*desk{d, other} {
			both.Go(func() {
				if err := g.work(ctx, id); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		both.Wait()
		cancel()
		if b := d.get(id); b.Status == completed {
			if ids := d.ids(b.OutputFileID); !slices.Equal(ids, want) {
				t.Errorf("%d outcomes: %v", len(ids), ids)
			}
			return
		}
	}
	t.Error("not completed")
}

// Refusals are waited out; a line whose engine always fails ends with its error.
func TestRepeats(t *testing.T) {
	for _, c := range []struct {
		kind   api.Kind
		passes bool
		counts bool
	}{
		{api.Background, true, false}, {api.RateLimitExceeded, true, false}, {api.InsufficientQuota, true, false}, {api.Draining, true, false},
		{api.LoadTimeout, true, false}, {api.EngineCrashed, true, true}, {api.RunnerFailed, true, true}, {api.UpstreamTimeout, true, true},
		{api.ModelLoadError, false, false}, {api.InvalidRequest, false, false}, {api.ModelNotFound, false, false},
	} {
		if passes, counts := repeats(api.New(c.kind, "")); passes != c.passes || counts != c.counts {
			t.Errorf("%v: %v %v", c.kind, passes, counts)
		}
	}
	d := newDesk(t)
	n := 0
	d.do = func(Call) Result {
		if n++; n < 3 {
			return refuse(api.Background)
		}
		return respond(200, `{}`)
	}
	if b := d.finish(d.start("24h", aLine("a", "m")).ID); n != 3 || b.RequestCounts != (counts{1, 1, 0}) {
		t.Errorf("%d calls, %+v", n, b)
	}
}

func TestCancel(t *testing.T) {
	d := newDesk(t)
	lines, want := numbered(0, 50, "a")
	var id string
	n := 0
	d.do = func(Call) Result {
		d.mu.Lock()
		defer d.mu.Unlock()
		if n++; n > 20 {
			return refuse(api.Background)
		}
		return respond(200, `{}`)
	}
	id = d.start("24h", lines...).ID
	done := make(chan error)
	go func() { done <- d.work(t.Context(), id) }()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		d.mu.Lock()
		waits := n > 20
		d.mu.Unlock()
		if waits {
			break
		}
	}
	var b Batch
	if err := d.ask(1, d.BatchCancel, id, "", "", &b); err != nil || b.Status != cancelling || b.CancellingAt == nil {
		t.Errorf("%+v, %v", b, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b = d.get(id)
	ids := d.ids(b.OutputFileID)
	if b.Status != cancelled || b.CancelledAt == nil || b.ErrorFileID != nil || len(ids) == 0 || !slices.Equal(ids, want[:len(ids)]) {
		t.Errorf("%+v, output: %v", b, ids)
	}
	if err := d.ask(1, d.BatchCancel, id, "", "", &b); !errors.Is(err, api.BatchEnded) {
		t.Error(err)
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		lines, want := numbered(0, 10, "a")
		rest, wantRest := numbered(10, 40, "b")
		d.do = func(c Call) Result {
			if strings.Contains(string(c.Body), `"model":"b"`) {
				return refuse(api.Background)
			}
			return respond(200, `{}`)
		}
		b := d.finish(d.start("2s", append(lines, rest...)...).ID)
		all := append(d.ids(b.OutputFileID), d.ids(b.ErrorFileID)...)
		if b.Status != expired || b.ExpiredAt == nil || b.OutputFileID == nil || !slices.Equal(all, append(want, wantRest...)) {
			t.Errorf("%+v, outcomes: %v", b, all)
		}
		var text string
		_ = d.ask(1, d.FileContent, *b.ErrorFileID, "", "", &text)
		if !strings.Contains(text, `"response":null,"error":{"code":"batch_expired"`) {
			t.Error(text)
		}
		if !slices.ContainsFunc(d.calls, func(c Call) bool { return c.Urgent }) || d.calls[0].Urgent {
			t.Error("no line was urgent, or the first one")
		}
	})
}

// In the hours that are given, lines load their models long before the window demands it.
func TestHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.do = func(c Call) Result {
			if !c.Urgent {
				return refuse(api.Background)
			}
			return respond(200, `{}`)
		}
		lines, _ := numbered(0, 20, "a")
		created := time.Now()
		d.hours = created.Add(2 * time.Hour)
		b := d.start("24h", lines...)
		time.AfterFunc(time.Hour, func() {
			if got := d.get(b.ID); !strings.Contains(got.WaitReason, "room for the model 'a'") || !strings.Contains(got.WaitReason, "batch_hours") {
				t.Errorf("%+v", got)
			}
		})
		b = d.finish(b.ID)
		if took := time.Since(created); b.Status != completed || b.WaitReason != "" || took < 2*time.Hour || took > 2*time.Hour+time.Minute {
			t.Errorf("%s after %v", b.Status, took)
		}
	})
}

func TestUrgent(t *testing.T) {
	w := &worker{Service: newDesk(t).Service, batch: &stored{Batch: Batch{CreatedAt: 1000, ExpiresAt: 5000}}}
	w.left.Store(1000)
	for _, c := range []struct {
		rate float64
		at   int64
		want bool
	}{{0, 3999, false}, {0, 4001, true}, {1, 2999, false}, {1, 3001, true}, {10, 4700, false}, {10, 4801, true}} {
		w.rate.Store(uint64(c.rate * 1e6))
		if got := w.urgent(time.Unix(c.at, 0)); got != c.want {
			t.Errorf("%v: %v", c, got)
		}
	}
}

func TestInvalidLines(t *testing.T) {
	many := []string{}
	for i := range maxModels + 1 {
		many = append(many, aLine(fmt.Sprint(i), fmt.Sprint("m", i)))
	}
	for want, lines := range map[string][]string{
		"invalid_json_line": {aLine("a", "m"), `{"custom_id"`}, "duplicate_custom_id": {aLine("a", "m"), aLine("a", "m")},
		"missing_required_parameter": {`{"custom_id":"a","method":"POST","url":"` + chat + `"}`}, "invalid_type": {`{"custom_id":1,"method":"POST","url":"x","body":{}}`},
		"invalid_method":      {strings.Replace(aLine("a", "m"), "POST", "GET", 1)},
		"mismatched_endpoint": {strings.Replace(aLine("a", "m"), chat, "/v1/embeddings", 1)},
		"invalid_custom_id":   {aLine("", "m")}, "too_many_models": many, "empty_file": {" "},
		"line_too_long": {aLine("a", strings.Repeat("m", MaxLine))},
	} {
		d := newDesk(t)
		b := d.finish(d.start("24h", lines...).ID)
		if b.Status != failed || b.FailedAt == nil || b.Errors == nil || b.Errors.Data[0].Code != want || len(d.calls) > 0 {
			t.Errorf("%s: %+v %+v", want, b, b.Errors)
		}
	}
}

// A batch whose input file no longer has the lines that were validated fails, and keeps the outcomes that it has.
func TestChangedInput(t *testing.T) {
	lines, want := numbered(0, 100, "a")
	for changed, code := range map[string]string{
		"{": "invalid_json_line", "": "input_file_changed", aLine("last", "b") + "\n" + aLine("more", "b"): "input_file_changed",
	} {
		d := newDesk(t)
		f, err := d.upload(1, strings.Join(append(lines, aLine("last", "b")), "\n"))
		if err != nil {
			t.Fatal(err)
		}
		path := d.path(d.cfg.Tenant(new(owner(1))), f.ID)
		change := sync.OnceValue(func() error {
			return errors.Join(os.WriteFile(path+".new", []byte(changed), 0o600), os.Rename(path+".new", path))
		})
		d.do = func(Call) Result {
			if err := change(); err != nil {
				t.Error(err)
			}
			return respond(200, `{}`)
		}
		b := d.finish(d.create(1, f.ID, "24h").ID)
		if ids := d.ids(b.OutputFileID); b.Status != failed || b.Errors.Data[0].Code != code || !slices.Equal(ids[:min(100, len(ids))], want) {
			t.Errorf("%q: %+v %+v", changed, b, b.Errors)
		}
	}
}

// A batch whose key is missing waits for it, and fails after a while.
func TestMissingKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		lines, _ := numbered(0, 20, "a")
		d.revoked.Store(true)
		time.AfterFunc(keyGrace-time.Second, func() { d.revoked.Store(false) })
		if b := d.finish(d.start("24h", lines...).ID); b.RequestCounts != (counts{20, 20, 0}) {
			t.Errorf("%+v", b)
		}
		d.do = func(Call) Result { d.revoked.Store(true); return refuse(api.Background) }
		d.waiting = true
		began := time.Now()
		b := d.finish(d.start("24h", lines...).ID)
		if b.Status != failed || b.Errors.Data[0].Code != "invalid_api_key" || time.Since(began) < keyGrace {
			t.Errorf("%+v after %v", b, time.Since(began))
		}
	})
}

// While the folder has no room, outcomes wait and no further lines start; each line runs once.
func TestFullFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		lines, want := numbered(0, 100, "a")
		b := d.start("24h", lines...)
		if err := d.reserve(0); err != nil {
			t.Fatal(err)
		}
		d.cfg.MaxBytes = d.used + 1000
		d.waiting = true
		done := make(chan error)
		go func() { done <- d.work(t.Context(), b.ID) }()
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if got := d.get(b.ID); !strings.Contains(got.WaitReason, "full") {
			t.Errorf("%+v", got)
		}
		used, err := d.countBytes()
		if n := len(d.calls); err != nil || n == 0 || n > 2*window || used > d.cfg.MaxBytes+1000 { // records are not counted
			t.Errorf("%d lines have run, %d of %d bytes are used, %v", n, used, d.cfg.MaxBytes, err)
		}
		if _, err := d.upload(1, strings.Repeat("x", 1000)); !errors.Is(err, api.DiskFull) {
			t.Error(err)
		}
		d.size.Lock()
		d.cfg.MaxBytes = 1 << 30
		d.size.Unlock()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if b = d.get(b.ID); len(d.calls) != len(want) || !slices.Equal(d.ids(b.OutputFileID), want) {
			t.Errorf("%d lines have run: %+v", len(d.calls), b)
		}
	})
}

// An outcome that the disk has no room for is added later.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		o, err := openOutcomes(d.path("", "a"), d.path("", "b"))
		if err != nil {
			t.Fatal(err)
		}
		defer o.close()
		if err := d.reserve(0); err != nil {
			t.Fatal(err)
		}
		output := o.files[toOutput]
		o.files[toOutput] = full
		w := &worker{Service: d.Service, batch: &stored{}, out: o}
		go func() {
			if err := w.append(t.Context(), toOutput, "x", &response{200, "r", []byte(`{}`)}, nil); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		d.size.Lock() // orders this before the next attempt
		if !w.blocked.Load() || o.position() != 0 || d.used != 0 {
			t.Errorf("the outcome does not wait, or %d bytes are counted", d.used)
		}
		o.files[toOutput] = output
		d.size.Unlock()
		time.Sleep(maxPause)
		synctest.Wait()
		if text, err := os.ReadFile(output.Name()); err != nil || o.position() != 1 || !bytes.Contains(text, []byte(`"custom_id":"x"`)) || w.blocked.Load() {
			t.Errorf("%q, %v", text, err)
		}
		_ = full.Close()
	})
}

// Responses of all lines share a bound, beside which a single line whose turn it is can hold one.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, share = 1000, 5000
		d := newDesk(t)
		d.cfg.MaxHeld = share
		most := int64(0)
		n := 0
		d.do = func(c Call) Result {
			d.mu.Lock()
			n++
			slow := time.Duration(100-n) * time.Second // the first lines end last
			d.mu.Unlock()
			time.Sleep(slow)
			if err := c.Memory.Reserve(size); err != nil {
				return refuse(api.RunnerFailed)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			most = max(most, d.held.Load())
			r := respond(200, `{}`)
			r.Release = func() { c.Memory.Release(size) }
			return r
		}
		var all sync.WaitGroup
		for range 3 {
			lines, _ := numbered(0, 40, "a")
			b := d.start("24h", lines...)
			all.Go(func() {
				if got := d.finish(b.ID); got.RequestCounts != (counts{40, 40, 0}) {
					t.Errorf("%+v", got)
				}
			})
		}
		all.Wait()
		if most <= share/2 || most > share+2*size || n != 120 || d.held.Load() != 0 || len(d.beyond) != 0 {
			t.Errorf("%d bytes were held, %d are; %d calls", most, d.held.Load(), n)
		}
	})
}

// The validation of a batch ends with the gateway.
func TestValidationEnds(t *testing.T) {
	d := newDesk(t)
	lines, _ := numbered(0, 10, "a")
	b := d.start("24h", lines...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.work(ctx, b.ID); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := d.get(b.ID); got.Status != validating {
		t.Errorf("%+v", got)
	}
}

// A file that may be needed stays: a record that cannot be read may name it. One that has expired starts no batch.
func TestNeededFiles(t *testing.T) {
	d := newDesk(t)
	b := d.start("24h", aLine("a", "m"))
	tenant := d.cfg.Tenant(new(owner(1)))
	path := d.path(tenant, b.ID+record)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:10], 0o600); err != nil {
		t.Fatal(err)
	}
	var text string
	if err := d.ask(1, d.FileDelete, b.InputFileID, "", "", &text); err == nil {
		t.Error("the file was deleted")
	}
	d.sweep(time.Now().Add(2 * retention))
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := d.finish(b.ID); got.Status != completed {
		t.Errorf("%+v", got)
	}
	var f File
	if err := d.read(tenant, b.InputFileID, &f); err != nil {
		t.Fatal(err)
	}
	f.ExpiresAt = time.Now().Unix() - 1
	if err := d.write(tenant, f.ID, f); err != nil {
		t.Fatal(err)
	}
	if err := d.ask(1, d.BatchCreate, "", "", `{"input_file_id":"`+f.ID+`","endpoint":"`+chat+`","completion_window":"24h"}`, &text); !errors.Is(err, api.FileNotFound) {
		t.Error(err)
	}
}

// A key sees and removes only its own files, and none that a batch needs.
func TestFiles(t *testing.T) {
	d := newDesk(t)
	var files []File
	for range 3 {
		f, err := d.upload(1, "text", "purpose", "batch", "expires_after[anchor]", "created_at", "expires_after[seconds]", "3600")
		if err != nil || f.Bytes != 4 || f.Filename != "in.jsonl" || f.ExpiresAt != f.CreatedAt+3600 {
			t.Fatalf("%+v, %v", f, err)
		}
		files = append(files, f)
		time.Sleep(2 * time.Millisecond) // ids have milliseconds
	}
	var page api.List[File]
	if err := d.ask(1, d.FileList, "", "limit=2", "", &page); err != nil || len(page.Data) != 2 || page.Data[0] != files[2] || !page.HasMore || *page.LastID != files[1].ID {
		t.Errorf("%+v, %v", page, err)
	}
	if err := d.ask(1, d.FileList, "", "order=asc&after="+files[1].ID, "", &page); err != nil || len(page.Data) != 1 || page.Data[0] != files[2] || page.HasMore {
		t.Errorf("%+v, %v", page, err)
	}
	id := files[0].ID
	batch := d.create(1, id, "24h")
	var text string
	for _, other := range []string{id, "file-../1", "../01000000/" + id, id + record, batch.ID, ""} {
		for what, serve := range map[string]func(*web.Request) error{"get": d.FileGet, "content": d.FileContent, "delete": d.FileDelete} {
			if err := d.ask(2, serve, other, "", "", &text); !errors.Is(err, api.FileNotFound) {
				t.Errorf("%s of %q: %v", what, other, err)
			}
		}
	}
	for what, serve := range map[string]func(*web.Request) error{"get": d.BatchGet, "cancel": d.BatchCancel} {
		if err := d.ask(2, serve, batch.ID, "", "", &text); !errors.Is(err, api.BatchNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := d.ask(2, d.BatchCreate, "", "", `{"input_file_id":"`+id+`","endpoint":"`+chat+`","completion_window":"24h"}`, &text); !errors.Is(err, api.FileNotFound) {
		t.Error(err)
	}
	if err := d.ask(2, d.FileList, "", "", "", &page); err != nil || len(page.Data) != 0 {
		t.Errorf("%+v, %v", page, err)
	}
	if err := d.ask(1, d.FileDelete, id, "", "", &text); !errors.Is(err, api.FileInUse) {
		t.Error(err)
	}
	d.finish(batch.ID)
	if err := d.ask(1, d.FileDelete, id, "", "", &text); err != nil {
		t.Error(err)
	}
	if err := d.ask(1, d.FileGet, id, "", "", &text); !errors.Is(err, api.FileNotFound) {
		t.Error(err)
	}
	for _, fields := range [][]string{{"purpose", "assistants"}, {"a", "b"}, {"purpose", "batch", "expires_after[seconds]", "3600"}, {"purpose", strings.Repeat("x", maxField+1)}} {
		if _, err := d.upload(1, "text", fields...); api.As(err).Status != 400 {
			t.Errorf("%v: %v", fields, err)
		}
	}
	d.cfg.MaxBytes = 10
	if _, err := d.upload(1, "text"); !errors.Is(err, api.DiskFull) {
		t.Error(err)
	}
	left, _ := filepath.Glob(d.path(d.cfg.Tenant(new(owner(1))), uploadPrefix+"*"))
	if len(left) > 0 {
		t.Error("left over:", left)
	}
}

// What has expired is removed, with what broken uploads left, and nothing else.
func TestSweep(t *testing.T) {
	d := newDesk(t)
	tenant := d.cfg.Tenant(new(owner(1)))
	done := d.finish(d.start("24h", aLine("a", "m")).ID)
	waits := d.start("720h", aLine("a", "m"))
	orphan := newID(filePrefix, time.Now())
	for _, name := range []string{orphan, uploadPrefix + "1"} {
		if err := os.WriteFile(d.path(tenant, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int {
		entries, _ := os.ReadDir(d.path(tenant, ""))
		return len(entries)
	}
	all := count()
	d.sweep(time.Now().Add(orphanAge - time.Hour))
	if n := count(); n != all {
		t.Errorf("%d of %d files are left after a day", n, all)
	}
	d.sweep(time.Now().Add(retention - time.Hour))
	if n := count(); n != all-2 {
		t.Errorf("%d of %d files are left before they expire", n, all)
	}
	d.sweep(time.Now().Add(retention + time.Hour))
	var text string
	if err := d.ask(1, d.BatchGet, done.ID, "", "", &text); !errors.Is(err, api.BatchNotFound) {
		t.Error(err)
	}
	if b := d.get(waits.ID); b.Status != validating || count() != 3 {
		t.Errorf("%+v, %d files", b, count())
	}
}

// Run finds the batches of all keys, runs as many as it may, and lets those that make no progress rest for others.
func TestRun(t *testing.T) {
	d := newDesk(t)
	f, err := d.upload(2, aLine("a", "m"))
	if err != nil {
		t.Fatal(err)
	}
	first, second := d.start("24h", aLine("a", "m")), d.create(2, f.ID, "24h")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { d.Run(ctx); close(ended) }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var other Batch
		if err := d.ask(2, d.BatchGet, second.ID, "", "", &other); err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", other, err)
		}
		if other.Status == completed && d.get(first.ID).Status == completed {
			break
		}
	}
	cancel()
	<-ended
}
