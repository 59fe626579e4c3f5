package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

const (
	briefly  = 250              // steps of a history where nothing else is asked for
	settling = 10 * time.Second // longest until what a call did is told
	memory   = 40               // calls that a failure shows
)

// types in the order of --max-loaded-models.
var types = []string{"llm", "embedding", "reranking", "audio", "image", "tts"}

// models has more of each type than most limits allow, and an NPU model of three types.
var models = calls.Catalogue{
	"l1": "llm", "l2": "llm", "l3": "llm", "l4": "llm", "l5": "llm", "l-npu": "llm, device: npu",
	"e1": "embedding", "e2": "embedding", "e3": "embedding", "e-npu": "embedding, device: npu",
	"r1": "reranking", "r2": "reranking", "r3": "reranking", "r4": "reranking", "r5": "reranking",
	"a1": "audio", "a2": "audio", "a-npu": "audio, device: npu", "i1": "image", "i2": "image", "t1": "tts", "t2": "tts",
}

func TestHistories(t *testing.T) {
	steps := number(t, "TWIN_STEPS", briefly)
	seed := uint64(number(t, "TWIN_SEED", 1))
	for _, tc := range []struct {
		limit string
		want  []int // by types
	}{
		{"1", []int{1, 1, 1, 1, 1, 1}},
		{"3", []int{3, 3, 3, 3, 3, 3}},
		{"-1", []int{-1, -1, -1, -1, -1, -1}},
		{"5 2 4", []int{5, 2, 4, 1, 1, 1}},
	} {
		t.Run(strings.ReplaceAll(tc.limit, " ", "_"), func(t *testing.T) {
			t.Parallel()
			limits := map[string]int{}
			for i, typ := range types {
				limits[typ] = tc.want[i]
			}
			p := &pair{
				t: t, client: calls.Client(t, 4), names: slices.Sorted(maps.Keys(models)),
				twin: twin{models: models, limits: limits, loadAt: map[string]int{}, pins: map[string]bool{}, loads: map[string]bool{}},
				sys: testenv.Start(t, testenv.Spec{
					Models: models.YAML(calls.LocalHost), Args: []string{"--max-loaded-models=" + tc.limit}, Redis: testenv.StartRedis(t),
				}),
			}
			random := rand.New(rand.NewPCG(seed, uint64(len(tc.limit))))
			began := time.Now()
			for range steps {
				p.step(random)
			}
			t.Logf("seed %d: %d steps in %v, of them %d loads, %d evictions, %d refusals; %d looks were too early, %d calls made again",
				seed, steps, time.Since(began).Round(time.Millisecond), p.loads, p.evictions, p.refusals, p.early, p.again)
			if p.again > 2+steps/50 {
				t.Errorf("%d of %d calls were told that the Redis does not answer, which it is not", p.again, steps)
			}
		})
	}
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number above 0", variable, text)
	}
	return n
}

// pair is a running system and its twin.
type pair struct {
	t       *testing.T
	sys     *testenv.System
	client  *http.Client
	twin    twin
	names   []string
	history []string // calls in short

	repeated bool // the last call was made more than once

	loads, evictions, refusals, early, again int
}

// step makes one call to both and compares them.
func (p *pair) step(r *rand.Rand) {
	p.t.Helper()
	model := p.names[r.IntN(len(p.names))]
	switch n := r.IntN(100); {
	case n < 55:
		p.infer(model)
	case n < 72:
		p.load(model, `{"model_name":%q}`)
	case n < 75:
		on := r.IntN(3) == 0
		if p.load(model, fmt.Sprintf(`{"model_name":%%q,"pinned":%v}`, on)) {
			p.twin.loads[model] = on
		}
	case n < 86:
		p.unload(model)
	case n < 87:
		p.unloadAll()
	case n < 92:
		p.pin(model, true)
	default: // more often, and of a pinned one, so that there is room most of the time
		if pins := p.twin.pinnedModels(); len(pins) > 0 {
			model = pins[r.IntN(len(pins))]
		}
		p.pin(model, false)
	}
	p.compare()
	// Uses are told apart by milliseconds.
	time.Sleep(2 * time.Millisecond)
}

func (p *pair) infer(model string) {
	p.t.Helper()
	p.note("use " + model)
	a := p.call(func(ctx context.Context) calls.Answer {
		return calls.Infer(ctx, p.client, p.sys.URL, models.Type(model), model)
	})
	p.used(model, a, http.StatusServiceUnavailable)
}

func (p *pair) load(model, body string) (ok bool) {
	p.t.Helper()
	p.note("load " + fmt.Sprintf(body, model))
	a := p.post("/v1/load", fmt.Sprintf(body, model))
	return p.used(model, a, http.StatusConflict)
}

// used checks the response of a use; refusal is the status where pinned models leave no room.
func (p *pair) used(model string, a calls.Answer, refusal int) (ok bool) {
	p.t.Helper()
	cold, evicted, refused := p.twin.use(model)
	switch {
	case refused:
		p.refusals++
		if a.Status != refusal || a.Code() != "slots_pinned_error" {
			p.fail("got %v, want %d slots_pinned_error", a, refusal)
		}
		return false
	case !a.OK():
		p.fail("got %v", a)
	case p.repeated: // the first call may have loaded it
		return true
	case (a.Header.Get("x-cold-start") == "1") != cold:
		p.fail("x-cold-start %q, want it cold: %v", a.Header.Get("x-cold-start"), cold)
	}
	var gone []string
	if text := a.Header.Get("x-evicted"); text != "" {
		gone = strings.Split(text, ",")
		slices.Sort(gone)
	}
	if !slices.Equal(gone, evicted) {
		p.fail("evicted %v, want %v", gone, evicted)
	}
	if cold {
		p.loads++
	}
	p.evictions += len(evicted)
	return true
}

func (p *pair) unload(model string) {
	p.t.Helper()
	p.note("unload " + model)
	a := p.post("/v1/unload", fmt.Sprintf(`{"model_name":%q}`, model))
	if p.repeated && a.Code() == "model_not_loaded" {
		a.Status = http.StatusOK // the first call did it
	}
	if there := p.twin.unload(model); there && a.Status != http.StatusOK || !there && (a.Status != http.StatusNotFound || a.Code() != "model_not_loaded") {
		p.fail("it was loaded: %v; got %v", there, a)
	}
}

func (p *pair) unloadAll() {
	p.t.Helper()
	p.note("unload all")
	if a := p.post("/v1/unload", "{}"); a.Status != http.StatusOK {
		p.fail("got %v", a)
	}
	p.twin.unloadAll()
}

func (p *pair) pin(model string, on bool) {
	p.t.Helper()
	p.note(fmt.Sprintf("pin %s %v", model, on))
	if a := p.post("/v1/internal/pin", fmt.Sprintf(`{"model_name":%q,"pinned":%v}`, model, on)); a.Status != http.StatusOK {
		p.fail("got %v", a)
	}
	p.twin.pin(model, on)
}

func (p *pair) post(path, body string) calls.Answer {
	p.t.Helper()
	return p.call(func(ctx context.Context) calls.Answer { return calls.Post(ctx, p.client, p.sys.URL+path, body) })
}

// call makes a call, and again when it was told to come again because the state store did not answer in its 150 ms, as
// happens on a machine that has too much to do: every call may be repeated.
func (p *pair) call(do func(context.Context) calls.Answer) calls.Answer {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), kit.Patience)
	defer cancel()
	for p.repeated = false; ; p.repeated = true {
		a := do(ctx)
		if a.Err != nil {
			p.fail("%v", a.Err)
		}
		if a.Code() != "state_unavailable" {
			return a
		}
		p.again++
		time.Sleep(500 * time.Millisecond)
	}
}

// told is what GET /v1/health tells of loaded models.
type told struct {
	Model  *string `json:"model_loaded"`
	Loaded []struct {
		Name   string `json:"model_name"`
		Pinned bool   `json:"pinned"`
	} `json:"all_models_loaded"`
}

// compare looks at the system until it reports what the twin does. What a call did is told a moment after its response
// at the latest.
func (p *pair) compare() {
	p.t.Helper()
	want := p.twin.order()
	expected := fmt.Sprintf("%v, loaded last %q, pinned %v", want, p.twin.latest(), p.twin.pinnedModels())
	for deadline := time.Now().Add(settling); ; time.Sleep(5 * time.Millisecond) {
		got := p.look()
		if got == expected {
			return
		}
		if time.Now().After(deadline) {
			p.fail("loaded: %s\n  want: %s", got, expected)
		}
		p.early++
	}
}

func (p *pair) look() string {
	p.t.Helper()
	a := p.call(func(ctx context.Context) calls.Answer { return calls.Get(ctx, p.client, p.sys.URL+"/v1/health") })
	var h told
	if err := json.Unmarshal(a.Body, &h); err != nil || a.Status != http.StatusOK {
		p.fail("health: %v", a)
	}
	names, pins, latest := []string{}, []string{}, ""
	for _, m := range h.Loaded {
		names = append(names, m.Name)
		if m.Pinned {
			pins = append(pins, m.Name)
		}
	}
	slices.Sort(pins)
	if h.Model != nil {
		latest = *h.Model
	}
	return fmt.Sprintf("%v, loaded last %q, pinned %v", names, latest, pins)
}

func (p *pair) note(call string) { p.history = append(p.history, call) }

func (p *pair) fail(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("step %d: %s\nthe last calls:\n  %s", len(p.history), fmt.Sprintf(format, args...),
		strings.Join(p.history[max(0, len(p.history)-memory):], "\n  "))
}
