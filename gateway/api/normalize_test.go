package api

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNormalizeError(t *testing.T) {
	tests := []struct {
		name    string
		status  int
		body    string
		want    int
		code    string
		message string
		param   string
	}{
		{name: "own table", status: 503, body: `{"error":{"message":"Wait.","type":"server_error","param":null,"code":"model_busy"}}`, want: 503, code: "model_busy", message: "Wait."},
		{name: "load error", status: 500, body: `{"error":{"message":"Bad magic.","code":"model_load_error"}}`, want: 500, code: "model_load_error", message: "Bad magic."},
		{name: "plain 400 of llama-server", status: 400, body: `{"error":{"code":400,"message":"Expected 'messages' to be an array","type":"invalid_request_error"}}`, want: 400, code: "invalid_request", message: "Expected 'messages' to be an array"},
		{name: "context by type", status: 400, body: `{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}`, want: 400, code: "context_length_exceeded", message: "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it"},
		{name: "the context is full of others", status: 500, body: `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`, want: 503, code: "overloaded", message: "Other requests are using the model's context. Retry the request."},
		{name: "a chat template", status: 500, body: `{"error":{"code":500,"message":"\n------------\nWhile executing CallExpression at line 100, column 3 in source:\n...args_dict.items()\nError: Unknown method","type":"server_error"}}`, want: 400, code: "invalid_type", message: "The model's chat template cannot take these messages or calls of tools."},
		{name: "input for the batch", status: 500, body: `{"error":{"code":500,"message":"input (900 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}`, want: 400, code: "context_length_exceeded", message: "input (900 tokens) is too large to process. increase the physical batch size (current batch size: 512)"},
		{name: "maximum context length", status: 400, body: `{"error":{"message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","param":"messages","code":400}}`, want: 400, code: "context_length_exceeded", message: "This model's maximum context length is 4096 tokens.", param: "messages"},
		{name: "status of a 4xx stays", status: 413, body: `{"error":"Input validation error: inputs must have less than 512 tokens. Given: 600","error_type":"Validation"}`, want: 413, code: "context_length_exceeded", message: "Input validation error: inputs must have less than 512 tokens. Given: 600"},
		{name: "no projector", status: 500, body: `{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj","type":"server_error"}}`, want: 400, code: "unsupported_parameter", message: "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", param: "messages"},
		{name: "broken image", status: 500, body: `{"error":{"code":500,"message":"Failed to load image or audio file","type":"server_error"}}`, want: 400, code: "invalid_type", message: "Failed to load image or audio file"},
		{name: "wrong kind of model", status: 501, body: `{"error":{"code":501,"message":"This server does not support embeddings. Start it with --embeddings","type":"not_supported_error"}}`, want: 400, code: "model_type_mismatch", message: "This server does not support embeddings. Start it with --embeddings"},
		{name: "loading", status: 503, body: `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, want: 503, code: "model_loading", message: "Loading model"},
		{name: "out of memory", status: 500, body: `{"error":{"code":500,"message":"CUDA error: out of memory","type":"server_error"}}`, want: 503, code: "engine_out_of_memory", message: "CUDA error: out of memory"},
		{name: "out of memory by another word", status: 500, body: `{"error":{"code":500,"message":"CUDA error: the resource allocation failed","type":"server_error"}}`, want: 503, code: "engine_out_of_memory", message: "CUDA error: the resource allocation failed"},
		{name: "a client quotes it", status: 400, body: `{"error":{"code":400,"message":"no tool is named out of memory","type":"invalid_request_error"}}`, want: 400, code: "invalid_request", message: "no tool is named out of memory"},
		{name: "internal", status: 500, body: `{"error":{"code":500,"message":"Compute error.","type":"server_error"}}`, want: 500, code: "internal_error", message: "Compute error."},
		{name: "an exception's words", status: 400, body: `{"error":{"code":400,"message":"Field 'stop': [json.exception.type_error.302] type must be string, but is number"}}`, want: 400, code: "invalid_type", message: "A field has a value of the wrong type or out of range."},
		{name: "words of a library", status: 500, body: `{"error":{"code":500,"message":"vector::_M_default_append","type":"server_error"}}`, want: 500, code: "internal_error", message: "The model's engine failed on this request."},
		{name: "std", status: 400, body: `{"error":{"code":400,"message":"Failed to initialize samplers: std::exception"}}`, want: 400, code: "invalid_type", message: "The grammar or the schema is not one that the model's engine can use."},
		{name: "a broken form", status: 500, body: `{"error":{"code":500,"message":"The model produced output that does not match the expected peg-native format","type":"server_error"}}`, want: 502, code: "bad_engine_reply", message: "The model's output does not match its chat template; another seed or prompt may help."},
		{name: "no memory", status: 500, body: `{"error":{"code":500,"message":"std::bad_alloc"}}`, want: 503, code: "engine_out_of_memory", message: "The model's engine ran out of memory."},
		{name: "unknown schema", status: 400, body: `{"error":{"code":400,"message":"Unable to generate parser for this template. Automatic parser generation failed: JSON schema conversion failed:\nUnrecognized schema: {\"type\":\"zz\"}"}}`, want: 400, code: "invalid_type", message: `The schema is not one that the model's engine can use: Unrecognized schema: {"type":"zz"}`},
		{name: "unknown reasoning format", status: 500, body: `{"error":{"code":500,"message":"Unknown reasoning format: zz"}}`, want: 400, code: "invalid_type", message: "'reasoning_format' is not one that the model's engine knows."},
		{name: "number as code", status: 404, body: `{"error":{"code":404,"message":"No such file","type":"not_found_error"}}`, want: 404, code: "", message: "No such file"},
		{name: "no route", status: 404, body: `{"detail":"Not Found"}`, want: 501, code: "not_supported", message: "The model's engine does not serve this route."},
		{name: "no route, of llama-server", status: 404, body: `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`, want: 501, code: "not_supported", message: "The model's engine does not serve this route."},
		{name: "no route, without a word", status: 405, body: "", want: 501, code: "not_supported", message: "The model's engine does not serve this route."},
		{name: "own words for a code", status: 422, body: `{"error":{"code":"string_too_short","message":"m"}}`, want: 422, code: "string_too_short", message: "m"},
		{name: "detail list", status: 422, body: `{"detail":[{"msg":"field required"}]}`, want: 422, code: "", message: `[{"msg":"field required"}]`},
		{name: "detail object", status: 400, body: `{"detail":{"error":{"message":"Unsupported response_format: srt","type":"invalid_request_error"}}}`, want: 400, code: "invalid_request", message: "Unsupported response_format: srt"},
		{name: "detail text", status: 400, body: `{"detail":"no"}`, want: 400, code: "invalid_request", message: "no"},
		{name: "plain text", status: 429, body: "busy\n", want: 429, code: "rate_limit_exceeded", message: "busy"},
		{name: "markup", status: 502, body: "<html><h1>nginx</h1></html>", want: 502, code: "bad_engine_reply", message: "Bad Gateway"},
		{name: "empty", status: 504, body: "", want: 504, code: "upstream_timeout", message: "Gateway Timeout"},
		{name: "not an error", status: 302, body: "", want: 502, code: "bad_engine_reply", message: "Bad Gateway"},
		{name: "odd status", status: 799, body: "x", want: 502, code: "bad_engine_reply", message: "x"},
		{name: "unknown 5xx", status: 520, body: "x", want: 520, code: "internal_error", message: "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := NormalizeError(tt.status, []byte(tt.body))
			if e.Status != tt.want || e.Code != tt.code || e.Message != tt.message || e.Param != tt.param {
				t.Errorf("got %d %q %q %q", e.Status, e.Code, e.Message, e.Param)
			}
			if strings.HasSuffix(e.Type, "BadRequestError") || e.Type == "" {
				t.Errorf("type %q is not of our table", e.Type)
			}
		})
	}
}

// Whatever an engine sends, the response is an error in the table's words.
func FuzzNormalizeError(f *testing.F) {
	f.Add(400, []byte(`{"error":{"code":400,"message":"m /a/b 10.0.0.1:80","type":"t","param":"p"}}`))
	f.Add(500, []byte("Traceback (most recent call last)"))
	f.Add(503, []byte(`{"error":"\ud800","detail":[1]}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := NormalizeError(status, body, "gpu-host-name")
		if e.Status < 400 || e.Status > 599 || e.Message == "" || !utf8.ValidString(e.Message) || len(e.Message) > 2004 {
			t.Fatalf("%d %q", e.Status, e.Message)
		}
		if strings.Contains(e.Message, "gpu-host-name") {
			t.Fatalf("host name in %q", e.Message)
		}
		for _, d := range []Dialect{OpenAI, Responses, Anthropic, Ollama, Lemonade} {
			if s := d.Status(e); s < 400 || s > 599 {
				t.Fatal(fmt.Sprint(d, s))
			}
		}
	})
}
