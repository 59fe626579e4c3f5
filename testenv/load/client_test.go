package load

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// worker keeps one connection busy.
type worker struct {
	client *http.Client
	took   []time.Duration
}

// drive sends b.N requests over the given number of connections and reports the median, the 99th percentile and the rate.
func drive(b *testing.B, conns int, url string, body []byte) {
	b.Helper()
	workers := make([]*worker, conns)
	for i := range workers {
		workers[i] = &worker{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}, Timeout: 2 * time.Minute}}
		if err := workers[i].send(url, body); err != nil { // connects, and warms both sides
			b.Fatal(err)
		}
		workers[i].took = workers[i].took[:0]
	}
	share := max(b.N/conns, 1)
	errs := make(chan error, conns)
	b.ResetTimer()
	began := time.Now()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() {
			for range share {
				if err := w.send(url, body); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	elapsed := time.Since(began)
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
	var all []time.Duration
	for _, w := range workers {
		all = append(all, w.took...)
		w.client.CloseIdleConnections()
	}
	slices.Sort(all)
	b.ReportMetric(micros(all[len(all)/2]), "p50-µs")
	b.ReportMetric(micros(all[len(all)*99/100]), "p99-µs")
	b.ReportMetric(float64(len(all))/elapsed.Seconds(), "req/s")
	b.ReportMetric(0, "ns/op")
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func (w *worker) send(url string, body []byte) error {
	began := time.Now()
	resp, err := w.client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", resp.StatusCode, data)
	}
	w.took = append(w.took, time.Since(began))
	return nil
}

// firstByte sends one request and returns the time until the first byte of its response's body.
func firstByte(url, body string) (time.Duration, error) {
	began := time.Now()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var one [1]byte
	if _, err := io.ReadFull(resp.Body, one[:]); err != nil {
		return 0, err
	}
	took := time.Since(began)
	rest, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s%s", resp.StatusCode, one[:], rest)
	}
	return took, err
}
