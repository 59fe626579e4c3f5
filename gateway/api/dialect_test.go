package api

import (
	"encoding/json"
	"testing"
	"time"
)

func TestErrorBodiesOfDialects(t *testing.T) {
	e := New(ModelNotFound, `no "x" <here>`).WithParam("model")
	tests := []struct {
		d    Dialect
		e    *Error
		want string
	}{
		{OpenAI, e, `{"error":{"message":"no \"x\" <here>","type":"invalid_request_error","param":"model","code":"model_not_found"}}`},
		{Responses, e, `{"error":{"message":"no \"x\" <here>","type":"invalid_request_error","param":"model","code":"model_not_found"}}`},
		{Lemonade, e, `{"status":"error","message":"no \"x\" <here>","error":{"message":"no \"x\" <here>","type":"invalid_request_error","param":"model","code":"model_not_found"}}`},
		{Anthropic, e, `{"type":"error","error":{"type":"not_found_error","message":"no \"x\" <here>"},"request_id":"req_1"}`},
		{Ollama, e, `{"error":"no \"x\" <here>"}`},
		{OpenAI, &Error{Status: 404, Type: "t"}, `{"error":{"message":"Not Found","type":"t","param":null,"code":null}}`},
	}
	for _, tt := range tests {
		if got := string(tt.d.Body(tt.e, "req_1")); got != tt.want {
			t.Errorf("%v:\n got %s\nwant %s", tt.d, got, tt.want)
		}
	}
}

func TestStatusAndAnthropicType(t *testing.T) {
	tests := []struct {
		kind                      Kind
		openAI, anthropic, ollama int
		typ                       string
	}{
		{InvalidJSON, 400, 400, 400, "invalid_request_error"},
		{InvalidAPIKey, 401, 401, 401, "authentication_error"},
		{InsufficientScope, 403, 403, 403, "permission_error"},
		{ModelNotFound, 404, 404, 404, "not_found_error"},
		{MethodNotAllowed, 405, 405, 405, "invalid_request_error"},
		{RequestTooLarge, 413, 413, 413, "request_too_large"},
		{RateLimitExceeded, 429, 429, 429, "rate_limit_error"},
		{QueueFull, 429, 429, 503, "rate_limit_error"},
		{ModelLoadError, 500, 500, 500, "api_error"},
		{NotSupported, 501, 501, 501, "api_error"},
		{EngineCrashed, 502, 502, 502, "api_error"},
		{ModelBusy, 503, 529, 503, "overloaded_error"},
		{LoadTimeout, 504, 504, 504, "timeout_error"},
		{DiskFull, 507, 507, 507, "api_error"},
		{DeleteUnknown, 422, 422, 422, "invalid_request_error"},
	}
	for _, tt := range tests {
		e := New(tt.kind, "m")
		if a, b, c := OpenAI.Status(e), Anthropic.Status(e), Ollama.Status(e); a != tt.openAI || b != tt.anthropic || c != tt.ollama {
			t.Errorf("%s: statuses %d %d %d", e.Code, a, b, c)
		}
		var body struct{ Error struct{ Type string } }
		if err := json.Unmarshal(Anthropic.Body(e, ""), &body); err != nil || body.Error.Type != tt.typ {
			t.Errorf("%s: Anthropic type %q, want %q (%v)", e.Code, body.Error.Type, tt.typ, err)
		}
	}
}

func TestStreamError(t *testing.T) {
	e := New(EngineCrashed, "m")
	body := `{"error":{"message":"m","type":"server_error","param":null,"code":"engine_crashed"}}`
	tests := map[Dialect]string{
		OpenAI:    "data: " + body + "\n\n",
		Responses: "event: error\ndata: " + `{"type":"error","sequence_number":0,"message":"m","param":null,"code":"engine_crashed",` + body[1:] + "\n\n",
		Anthropic: "event: error\ndata: " + `{"type":"error","error":{"type":"api_error","message":"m"},"request_id":"r"}` + "\n\n",
		Ollama:    `{"error":"m"}` + "\n",
	}
	for d, want := range tests {
		if got := string(d.StreamError(e, "r")); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestLoadingProgress(t *testing.T) {
	full := LoadingProgress{Model: "a/b:q4", Stage: "waking", Host: "gpu-1", Waited: 12900 * time.Millisecond, Position: 3, ETA: 39100 * time.Millisecond}
	tests := []struct {
		c    LoadingProgress
		want string
	}{
		{full, ": loading model=a/b:q4 state=waking host=gpu-1 waited=12 position=3 eta=40\n\n"},
		{LoadingProgress{Model: "m"}, ": loading model=m waited=0\n\n"},
		{LoadingProgress{Model: "m", Stage: "pulling", BytesTotal: 9}, ": loading model=m state=pulling waited=0 bytes_done=0 bytes_total=9\n\n"},
		{LoadingProgress{Model: "m\ndata: x", Waited: -time.Second}, ": loading model=m_data:_x waited=0\n\n"},
		{LoadingProgress{}, ": loading waited=0\n\n"},
	}
	for _, tt := range tests {
		if got := string(tt.c.AppendComment(nil)); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.c, got, tt.want)
		}
	}
}
