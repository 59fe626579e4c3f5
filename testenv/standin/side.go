package main

import (
	"encoding/json"
	"io"
	"net/http"
)

// sideRoutes are the routes that are no inference: they are neither counted nor hit by
// the faults of single requests.
func (s *server) sideRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/models":     s.object(s.models),
		"GET /models":        s.object(s.models),
		"GET /api/tags":      s.object(s.models),
		"GET /props":         s.object(s.props),
		"GET /slots":         http.HandlerFunc(s.slots),
		"GET /standin/stats": s.object(func() any { return s.stats.snapshot() }),
		"POST /standin/step": http.HandlerFunc(s.step),
		"GET /v1/realtime":   http.HandlerFunc(s.realtime),
		"POST /tokenize":     http.HandlerFunc(s.tokenize),
		"POST /detokenize":   http.HandlerFunc(s.detokenize),
	}
}

func (s *server) object(get func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, get()) })
}

func (s *server) models() any {
	return map[string]any{"object": "list", "data": []any{
		map[string]any{"id": s.cfg.Alias, "object": "model", "owned_by": "standin"},
	}}
}

func (s *server) props() any {
	return map[string]any{
		"model_alias": s.cfg.Alias, "model_path": s.cfg.NeedFile, "total_slots": 1,
		"default_generation_settings": map[string]any{"n_ctx": s.cfg.Ctx},
		"modalities":                  map[string]bool{"vision": true, "audio": true},
	}
}

// slots is answered between tokens, as llama-server does it.
func (s *server) slots(w http.ResponseWriter, r *http.Request) {
	if !s.hangs(r) {
		writeJSON(w, http.StatusOK, []any{map[string]any{"id": 0, "n_ctx": s.cfg.Ctx, "is_processing": s.stats.snapshot().InFlight > 0}})
	}
}

// step lets one token pass where --step holds them.
func (s *server) step(w http.ResponseWriter, _ *http.Request) {
	select {
	case s.steps <- struct{}{}:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeError(w, http.StatusTooManyRequests, "unavailable_error", "so many steps wait for their tokens already")
	}
}

func (s *server) tokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Content string `json:"content"`
	}
	if readSmall(w, r, &q) {
		writeJSON(w, http.StatusOK, map[string]any{"tokens": tokenize(q.Content)})
	}
}

func (s *server) detokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tokens []int `json:"tokens"`
	}
	if readSmall(w, r, &q) {
		writeJSON(w, http.StatusOK, map[string]any{"content": detokenize(q.Tokens)})
	}
}

// readSmall decodes the body into v, or answers 400 and returns false.
func readSmall(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", "failed to parse the request: "+err.Error())
		return false
	}
	return true
}
