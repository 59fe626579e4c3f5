package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	askPlain  = `{"messages":[{"role":"user","content":"x"}]}`
	askStream = `{"stream":true,"messages":[{"role":"user","content":"x"}]}`
)

func TestEmbeddingCostIsPaidOneCallAtATime(t *testing.T) {
	s, url := startEngine(t, "--call-cost 20ms --input-cost 5ms")
	begun := time.Now()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			resp, err := http.Post(url+"/v1/embeddings", "", strings.NewReader(`{"input":["a","b"]}`))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	all.Wait()
	if took := time.Since(begun); took < 4*30*time.Millisecond {
		t.Errorf("4 calls of 2 inputs took %v", took)
	}
	if st := s.stats.snapshot(); st.BatchSizes[2] != 4 || st.MaxConcurrent < 2 {
		t.Errorf("%+v", st)
	}
}

func TestCountStartIsSharedAndExact(t *testing.T) {
	file := filepath.Join(t.TempDir(), "starts")
	var all sync.WaitGroup
	seen := make([]bool, 21)
	var mu sync.Mutex
	for range 20 {
		all.Go(func() {
			n, err := countStart(file)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || n < 1 || n > 20 || seen[n] {
				t.Errorf("start %d, %v", n, err)
				return
			}
			seen[n] = true
		})
	}
	all.Wait()
}
