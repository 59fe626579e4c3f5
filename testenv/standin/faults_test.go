package main

import (
	"bufio"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/testenv/kit"
)

const (
	askPlain  = `{"messages":[{"role":"user","content":"x"}]}`
	askStream = `{"stream":true,"messages":[{"role":"user","content":"x"}]}`
)

func TestGarbagePlain(t *testing.T) {
	for _, tc := range []struct {
		kind string
		bad  func(contentType, body string, err error) bool
	}{
		{"content-type", func(kind, _ string, err error) bool { return err == nil && kind == "text/html" }},
		{"line", func(_, body string, err error) bool { return err == nil && len(body) > 16<<20 }},
		{"framing", func(_, _ string, err error) bool { return err != nil }},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			_, url := startEngine(t, "--garbage "+tc.kind)
			resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(askPlain))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != 200 || !tc.bad(resp.Header.Get("Content-Type"), string(body), err) {
				t.Errorf("%d %s %.200q %v", resp.StatusCode, resp.Header.Get("Content-Type"), body, err)
			}
		})
	}
}

func TestGarbageStreamComesAfterAGoodEvent(t *testing.T) {
	for kind, bad := range map[string]func(rest string, err error) bool{
		"line":    func(rest string, err error) bool { return err == nil && len(rest) > 16<<20 },
		"framing": func(_ string, err error) bool { return err != nil },
	} {
		t.Run(kind, func(t *testing.T) {
			_, url := startEngine(t, "--garbage "+kind)
			resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(askStream))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			r := bufio.NewReader(resp.Body)
			first, err := r.ReadString('\n')
			if err != nil || !strings.Contains(first, `"role":"assistant"`) {
				t.Fatalf("first event: %q, %v", first, err)
			}
			_, _ = r.ReadString('\n')
			rest, err := io.ReadAll(r)
			if !bad(string(rest), err) {
				t.Errorf("%.200q %v", rest, err)
			}
		})
	}
}

func TestExitAfterRequestsDiesInTheMiddle(t *testing.T) {
	for _, tc := range []struct{ name, body, first string }{
		{"plain", askPlain, ""},
		{"stream", askStream, "data: "},
		{"error", `{`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, url := startEngine(t, "--exit-after 2") // "death" aborts the connection here
			if status, _, _ := post(t, url+"/v1/chat/completions", tc.body); status >= 500 {
				t.Fatalf("first request: %d", status)
			}
			resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(tc.body))
			var body []byte
			if err == nil {
				body, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil || !strings.HasPrefix(string(body), tc.first) {
				t.Errorf("second request: %q, %v", body, err)
			}
		})
	}
}

func TestHang(t *testing.T) {
	for kind, path := range map[string]string{"infer": "/v1/embeddings", "health": "/health"} {
		t.Run(kind, func(t *testing.T) {
			s, url := startEngine(t, "--hang "+kind)
			client := http.Client{Timeout: 150 * time.Millisecond}
			resp, err := client.Post(url+"/v1/embeddings", "", strings.NewReader(`{"input":"a"}`))
			if err == nil {
				resp.Body.Close()
			}
			if (err != nil) != (kind == "infer") {
				t.Errorf("inference: %v", err)
			}
			resp, err = client.Get(url + "/health")
			if err == nil {
				resp.Body.Close()
			}
			if (err != nil) != (kind == "health") {
				t.Errorf("health: %v", err)
			}
			kit.Eventually(t, "no call of "+path+" left", func() bool { return s.stats.snapshot().InFlight == 0 })
		})
	}
}

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
