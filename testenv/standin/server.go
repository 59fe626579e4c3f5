package main

import (
	"crypto/subtle"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// server answers the engine API. Its handler is safe for concurrent use.
type server struct {
	cfg   Config
	log   *slog.Logger
	die   func()        // kills the process; replaced in tests
	ready atomic.Bool   // set once, when loaded
	seq   atomic.Uint64 // numbers answers
	stats *counters
	gpu   chan struct{} // holds one token: embedding calls with a cost run one at a time
	steps chan struct{} // one for each token that --step lets pass

	hangOnce sync.Once
	hung     chan struct{} // closed by --hang-on
}

// maxSteps is how many steps may come before the tokens that they let pass.
const maxSteps = 1000

func newServer(cfg Config, log *slog.Logger, die func()) *server {
	return &server{cfg: cfg, log: log, die: die, stats: newCounters(), gpu: make(chan struct{}, 1), steps: make(chan struct{}, maxSteps), hung: make(chan struct{})}
}

// routes are the inference routes; each answers with and without the /v1 prefix.
func (s *server) routes() []route {
	return []route{
		{"chat/completions", "llm", (*call).chat},
		{"completions", "llm", (*call).complete},
		{"messages", "llm", (*call).messages},
		{"messages/count_tokens", "llm", (*call).countMessages},
		{"embeddings", "embedding", (*call).embed},
		{"rerank", "reranking", (*call).rerank},
		{"audio/transcriptions", "audio", (*call).transcribe},
		{"audio/translations", "audio", (*call).transcribe},
		{"audio/speech", "tts", (*call).speak},
		{"images/generations", "image", (*call).paint},
		{"images/edits", "image", (*call).repaint},
		{"images/variations", "image", (*call).repaint},
	}
}

// route is one inference route: its path below /v1, the model type that serves it and
// its handler.
type route struct {
	name, typ string
	serve     func(*call)
}

// handler is the whole API.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	for _, r := range s.routes() {
		h := s.infer(r)
		mux.Handle("POST /v1/"+r.name, h)
		mux.Handle("POST /"+r.name, h)
	}
	for pattern, h := range s.sideRoutes() {
		mux.Handle(pattern, s.whenReady(h))
	}
	return s.logged(s.authorised(mux))
}

func (s *server) health(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Hang == "health" {
		<-r.Context().Done()
		return
	}
	if !s.ready.Load() {
		writeError(w, http.StatusServiceUnavailable, "unavailable_error", "Loading model")
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// authorised asks for the API key, except of /health.
func (s *server) authorised(next http.Handler) http.Handler {
	want := []byte("Bearer " + s.cfg.APIKey)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := []byte(r.Header.Get("Authorization"))
		if s.cfg.APIKey != "" && r.URL.Path != "/health" && subtle.ConstantTimeCompare(got, want) != 1 {
			writeError(w, http.StatusUnauthorized, "authentication_error", "Invalid API Key")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hangs reports whether the engine hangs, once the client has left.
func (s *server) hangs(r *http.Request) bool {
	select {
	case <-s.hung:
		<-r.Context().Done()
		return true
	default:
		return false
	}
}

// whenReady answers 503 until the model is loaded.
func (s *server) whenReady(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.ready.Load() {
			writeError(w, http.StatusServiceUnavailable, "unavailable_error", "Loading model")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// logged writes one line when a request has ended.
func (s *server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		seen := &statusWriter{ResponseWriter: w}
		next.ServeHTTP(seen, r)
		s.log.Info("request", "method", r.Method, "path", r.URL.Path, "status", seen.status,
			"ms", time.Since(begun).Milliseconds(), "cancelled", r.Context().Err() != nil, "traceparent", r.Header.Get("traceparent"))
	})
}

// statusWriter remembers the status; 0 means that nothing was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the first status.
func (w *statusWriter) WriteHeader(code int) {
	if w.status == 0 {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController flush and hijack.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
