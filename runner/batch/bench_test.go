package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	matrix  = flag.Bool("batch.matrix", false, "benchmark every client count, text length and n_batch")
	plot    = flag.String("batch.plot", "", "file for an SVG of BenchmarkRealModel; a table goes to the log")
	threads = flag.Int("batch.threads", 0, "threads of the real engine; 0 leaves it to the engine, 1 suffers least from other work on the machine")
)

// result is the outcome of closed-loop clients.
type result struct {
	texts    int // answered within the window
	sent     int // answered at all
	took     time.Duration
	p50, p99 time.Duration
}

func (r result) rate() float64 { return float64(r.texts) / r.took.Seconds() }

// drive lets clients send requests for a while, each the next one as soon as the last is answered. It counts what is
// answered within d, after a warm-up of d/5. Times are those of all requests that were open within d, up to the end of
// each, so that they show a server that leaves clients waiting.
func drive(t testing.TB, clients int, d time.Duration, bodies [][]byte, send func(body []byte) error) result {
	t.Helper()
	var wg sync.WaitGroup
	var next, sent, texts atomic.Int64
	begin := time.Now()
	from, till := begin.Add(d/5), begin.Add(d+d/5)
	times := make([][]time.Duration, clients)
	for c := range clients {
		wg.Go(func() {
			for time.Now().Before(till) {
				began := time.Now()
				if err := send(bodies[int(next.Add(1))%len(bodies)]); err != nil {
					t.Error(err)
					return
				}
				sent.Add(1)
				if now := time.Now(); now.After(from) {
					times[c] = append(times[c], now.Sub(began))
					if !now.After(till) {
						texts.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	all := slices.Concat(times...)
	if len(all) == 0 {
		return result{sent: int(sent.Load()), took: d}
	}
	slices.Sort(all)
	return result{texts: int(texts.Load()), sent: int(sent.Load()), took: d, p50: all[len(all)/2], p99: all[len(all)*99/100]}
}

// bodies returns requests of one text each, with a random length between from and to words.
func bodies(t testing.TB, n, from, to int) [][]byte {
	t.Helper()
	words := strings.Fields("the quick brown fox jumps over lazy dog while seven green boats sail under old stone bridges near quiet river towns and people sing about summer rain winter snow mountain light")
	r := rand.New(rand.NewPCG(1, 2))
	out := make([][]byte, n)
	for i := range out {
		text := make([]string, from+r.IntN(to-from+1))
		for j := range text {
			text[j] = words[r.IntN(len(words))]
		}
		out[i] = body(t, strings.Join(text, " "))
	}
	return out
}

// joined combines the texts of single requests into requests of n each.
func joined(t testing.TB, single [][]byte, n int) (out [][]byte) {
	t.Helper()
	for part := range slices.Chunk(single, n) {
		texts := make([]string, len(part))
		for i, raw := range part {
			var q struct{ Input string }
			if err := json.Unmarshal(raw, &q); err != nil {
				t.Fatal(err)
			}
			texts[i] = q.Input
		}
		out = append(out, body(t, texts))
	}
	return out
}

func batched(t testing.TB, b *Batcher) func([]byte) error {
	return func(body []byte) error { return b.Serve(context.Background(), Call{Body: body}, io.Discard) }
}

func direct(t testing.TB, p *process) func([]byte) error {
	return func(body []byte) error {
		status, answer, err := p.Embed(context.Background(), body, nil)
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d: %s", status, answer)
		}
		return err
	}
}

// BenchmarkCostModel uses an engine with a fixed cost of 5 ms a call and 0.1 ms an input. It compares 64 clients with
// one short text each with the ideal, one client with calls of 64 texts, in alternating windows. of_formula is the
// share of what the costs alone would allow.
func BenchmarkCostModel(b *testing.B) {
	p := standin(b, "--call-cost", "5ms", "--input-cost", "100us")
	q := newBatcher(b, p, Limits{})
	short := bodies(b, 1024, 4, 12)
	arrays := joined(b, short, 64)
	var rates, ideals []float64
	for b.Loop() {
		for range 5 {
			rates = append(rates, drive(b, 64, time.Second, short, batched(b, q)).rate())
			ideals = append(ideals, 64*drive(b, 1, time.Second, arrays, direct(b, p)).rate())
		}
	}
	rate, ideal, formula := median(rates), median(ideals), 64/(5*time.Millisecond+64*100*time.Microsecond).Seconds()
	b.ReportMetric(rate, "texts/s")
	b.ReportMetric(rate/ideal, "of_ideal")
	b.ReportMetric(rate/formula, "of_formula")
}

// decodes returns how many batches llama-server has computed.
func (p *process) decodes(t testing.TB) int {
	t.Helper()
	_, body, err := p.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^llamacpp:n_decode_total (\d+)`).FindSubmatch(body)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

// BenchmarkRealModel compares, under the same clients, llama-server with its defaults, with the flags of a plan, and
// behind a queue. The fourth variant is the most that batching can achieve: one client that asks the second variant for
// as many texts at once as there are clients. Windows of the four alternate, and ratios are medians over successive
// windows, so that other load on the machine affects all of them.
func BenchmarkRealModel(b *testing.B) {
	clients, kinds, sizes := []int{1, 8, 64}, []string{"short"}, []int{2048}
	if *matrix {
		kinds, sizes = []string{"short", "long", "mixed"}, []int{256, 2048, 8192}
	}
	lengths := map[string][2]int{"short": {4, 12}, "long": {100, 200}, "mixed": {2, 250}}
	common := []string{"--metrics"}
	if *threads > 0 {
		common = append(common, "--threads", strconv.Itoa(*threads))
	}
	plain := minilm(b, common...)
	w := words(b)
	var cells []cell
	for _, n := range sizes {
		ub := strconv.Itoa(min(n, 512))
		flags := slices.Concat(common, []string{"-b", ub, "-ub", ub, "-np", "64", "-c", strconv.Itoa(2 * n), "-kvu"})
		tuned, ours := minilm(b, flags...), minilm(b, flags...)
		q, err := New(b.Context(), Config{Limits: Limits{NBatch: n, Positions: 512}, Engine: ours, Words: w})
		if err != nil {
			b.Fatal(err)
		}
		for _, kind := range kinds {
			if kind != "short" && n < 512 {
				continue // longer than the engine takes at that size
			}
			for _, c := range clients {
				b.Run(fmt.Sprintf("n_batch=%d/%s/clients=%d", n, kind, c), func(b *testing.B) {
					texts := bodies(b, 2000, lengths[kind][0], lengths[kind][1])
					for b.Loop() {
						cells = append(cells, compare(b, cell{n: n, kind: kind, clients: c}, texts, plain, tuned, ours, q))
					}
				})
			}
		}
		q.Close()
	}
	if *plot != "" {
		if err := os.WriteFile(*plot, draw(cells), 0o644); err != nil {
			b.Fatal(err)
		}
		b.Logf("\n%s", table(cells))
	}
}

// variants are the four variants, in the order of a round.
var variants = [4]string{"plain", "flags", "queue", "arrays"}

// cell is one comparison: medians of each variant over the rounds.
type cell struct {
	n, clients int
	kind       string
	rate       [len(variants)]float64 // texts a second
	p50, p99   [len(variants)]float64 // in ms
	calls      [len(variants)]float64 // model evaluations per thousand texts
	of         [len(variants)]float64 // the queue's rate as a share of each
}

func compare(b *testing.B, c cell, texts [][]byte, plain, tuned, ours *process, q *Batcher) cell {
	servers := [len(variants)]*process{plain, tuned, ours, tuned}
	senders := [len(variants)]func([]byte) error{direct(b, plain), direct(b, tuned), batched(b, q), direct(b, tuned)}
	requests := [len(variants)][][]byte{texts, texts, texts, joined(b, texts, c.clients)}
	// Each client gets a few answers in a window. There are enough windows for about half a minute in total, at least
	// two: an hour for the whole matrix on two cores.
	window := min(max(800*time.Millisecond, 4*round(b, c.clients, texts, senders[0])), time.Minute)
	rounds := min(max(int(20*time.Second/(time.Duration(len(variants))*window)), 2), 9)
	var rates, p50s, p99s, shares [len(variants)][]float64
	var decodes, total [len(variants)]int
	for n := range rounds {
		var rate [len(variants)]float64
		for turn := range variants {
			i := (n + turn) % len(variants)
			clients, each := c.clients, 1
			if variants[i] == "arrays" {
				clients, each = 1, c.clients
			}
			before := servers[i].decodes(b)
			r := drive(b, clients, window, requests[i], senders[i])
			rate[i] = r.rate() * float64(each)
			rates[i] = append(rates[i], rate[i])
			p50s[i] = append(p50s[i], r.p50.Seconds()*1e3)
			p99s[i] = append(p99s[i], r.p99.Seconds()*1e3)
			decodes[i] += servers[i].decodes(b) - before
			total[i] += r.sent * each
		}
		for i := range variants {
			shares[i] = append(shares[i], rate[2]/max(rate[i], 1))
		}
	}
	for i, name := range variants {
		c.rate[i], c.p50[i], c.p99[i], c.of[i] = median(rates[i]), median(p50s[i]), median(p99s[i]), median(shares[i])
		c.calls[i] = float64(decodes[i]) / float64(max(total[i], 1)) * 1000
		b.ReportMetric(c.rate[i], name+"_texts/s")
		b.ReportMetric(c.p50[i], name+"_p50ms")
		b.ReportMetric(c.p99[i], name+"_p99ms")
		b.ReportMetric(c.calls[i], name+"_decodes/ktext")
		b.ReportMetric(c.of[i], "of_"+name)
	}
	return c
}

// round returns how long it takes until every client has an answer.
func round(b *testing.B, clients int, bodies [][]byte, send func([]byte) error) time.Duration {
	b.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			if err := send(bodies[c%len(bodies)]); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// median sorts values and returns the middle one.
func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// BenchmarkServe measures the queue's own cost per text: for a lone request, and for 64 clients that share calls.
func BenchmarkServe(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			e := instant{}
			if clients > 1 {
				e.took = 2 * time.Millisecond // so that clients share calls
			}
			q := newBatcher(b, e, Limits{})
			raw := body(b, "the quick brown fox")
			b.ReportAllocs()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := q.Serve(context.Background(), Call{Body: raw}, io.Discard); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkNaive does the same work as BenchmarkServe in the plain way: encoding/json decodes and encodes every body,
// and no buffers are kept. It is the baseline for the queue's allocations.
func BenchmarkNaive(b *testing.B) {
	type call struct {
		Model string   `json:"model"`
		Input []string `json:"input"`
	}
	for _, share := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", share), func(b *testing.B) {
			raw := body(b, "the quick brown fox")
			b.ReportAllocs()
			for done := 0; done < b.N; done += share {
				var c call
				for range share {
					var q struct{ Model, Input string }
					if err := json.Unmarshal(raw, &q); err != nil {
						b.Fatal(err)
					}
					c.Model, c.Input = q.Model, append(c.Input, q.Input)
				}
				joint, _ := json.Marshal(c)
				_, answer, _ := instant{}.Embed(b.Context(), joint, nil)
				var a reply
				if err := json.Unmarshal(answer, &a); err != nil || len(a.Data) != share {
					b.Fatal(len(a.Data), err)
				}
				for i := range a.Data {
					if _, err := json.Marshal(map[string]any{"object": "list", "data": a.Data[i : i+1], "model": c.Model, "usage": a.Usage}); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// instant answers every call with an embedding for each input, after a delay.
type instant struct{ took time.Duration }

func (instant) Tokens(context.Context, []byte, bool) (int, error) { return 6, nil }

func (e instant) Embed(_ context.Context, body, dst []byte) (int, []byte, error) {
	time.Sleep(e.took)
	n := bytes.Count(body, []byte("quick"))
	dst = append(dst, `{"object":"list","data":[`...)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"object":"embedding","index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"embedding":[0.1,0.2,0.3,0.4]}`...)
	}
	return 200, append(dst, `]}`...), nil
}

// BenchmarkForm measures forming batches of 64 single texts.
func BenchmarkForm(b *testing.B) {
	f, now := newPacker(Limits{}.WithDefaults(), 0), time.Unix(0, 0)
	requests := make([]Request, 64)
	tokens := []int{10}
	b.ReportAllocs()
	for b.Loop() {
		for i := range requests {
			requests[i] = Request{Priority: Normal, Tokens: tokens}
			f.Add(uint64(i+1), &requests[i], now)
		}
		batch, _ := f.Next(now.Add(time.Hour))
		f.Done(batch, now)
	}
}
