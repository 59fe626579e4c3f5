package api

import (
	"net/http"
	"slices"

	"reveille/infra/jsonscan"
)

// Dialect is the family of clients a path belongs to; it decides the shape of
// an error.
type Dialect uint8

// The dialects. Rerank and operator routes speak [OpenAI].
const (
	OpenAI    Dialect = iota
	Responses         // OpenAI, with named events in its streams
	Anthropic
	Ollama
	Lemonade // the management API of Lemonade Server: /load, /unload, /pull, /internal/set and others
)

// ContentType is the media type of the dialect's error bodies.
const ContentType = "application/json; charset=utf-8"

type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

type openAIBody struct {
	Error openAIError `json:"error"`
}

type lemonadeBody struct {
	Status  string      `json:"status"`
	Message string      `json:"message"`
	Error   openAIError `json:"error"`
}

type anthropicError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

type anthropicBody struct {
	Type      string         `json:"type"`
	Error     anthropicError `json:"error"`
	RequestID string         `json:"request_id"`
}

type ollamaBody struct {
	Error string `json:"error"`
}

// Status returns the HTTP status e has in this dialect.
func (d Dialect) Status(e *Error) int {
	switch {
	case d == Anthropic && e.Status == http.StatusServiceUnavailable:
		return statusOverloaded
	case d == Ollama && e.Kind == QueueFull:
		return http.StatusServiceUnavailable // what Ollama itself returns for a full queue
	}
	return e.Status
}

// Body returns the JSON body e has in this dialect, without a final newline.
func (d Dialect) Body(e *Error, requestID string) []byte {
	object := e.openAI()
	message := object.Message
	switch d {
	case Anthropic:
		return encode(anthropicBody{"error", anthropicError{anthropicType(e), message}, requestID})
	case Ollama:
		return encode(ollamaBody{message})
	case Lemonade:
		return encode(lemonadeBody{"error", message, object})
	}
	return encode(openAIBody{object})
}

// openAI is the error as OpenAI's dialect has it.
func (e *Error) openAI() openAIError {
	message := e.Message
	if message == "" {
		message = statusText(e.Status)
	}
	return openAIError{Message: message, Type: e.Type, Param: orNull(e.Param), Code: orNull(e.Code)}
}

// StreamError returns the bytes that end a stream which has started: one error
// event, or one line for Ollama. No final event may follow it.
func (d Dialect) StreamError(e *Error, requestID string) []byte {
	body := d.Body(e, requestID)
	switch d {
	case Ollama:
		return append(body, '\n')
	case Responses:
		return AppendEvent(nil, "error", e.Event(0))
	case Anthropic:
		return AppendEvent(nil, "error", body)
	}
	return AppendEvent(nil, "", body)
}

// responsesEvent reports an error in two places, since clients look in either.
type responsesEvent struct {
	Type     string `json:"type"`
	Sequence int    `json:"sequence_number"`
	openAIError
	Error openAIError `json:"error"`
}

// Event is the data of the error event in a stream of [Responses].
func (e *Error) Event(sequence int) []byte {
	object := e.openAI()
	return encode(responsesEvent{"error", sequence, object, object})
}

// Ping is the keepalive of a stream that has had events, nil for a comment.
func (d Dialect) Ping() []byte {
	if d == Anthropic {
		return anthropicPing
	}
	return nil
}

var anthropicPing = []byte("event: ping\ndata: {\"type\":\"ping\"}\n\n")

// AppendEvent appends an event of a stream to dst; name may be empty.
func AppendEvent(dst []byte, name string, data []byte) []byte {
	dst = slices.Grow(dst, len("event: \ndata: \n\n")+len(name)+len(data))
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	return append(append(append(dst, "data: "...), data...), "\n\n"...)
}

// statusOverloaded is Anthropic's own status for a service that is too busy.
const statusOverloaded = 529

func anthropicType(e *Error) string {
	switch s := e.Status; {
	case s == http.StatusUnauthorized:
		return typeAuth
	case s == http.StatusForbidden:
		return typePermission
	case s == http.StatusNotFound:
		return "not_found_error"
	case s == http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case s == http.StatusTooManyRequests:
		return typeRateLimit
	case s < http.StatusInternalServerError:
		return typeInvalid
	case s == http.StatusServiceUnavailable:
		return "overloaded_error"
	case s == http.StatusGatewayTimeout:
		return typeTimeout
	}
	return "api_error"
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// encode writes v as JSON, leaving <, > and & readable.
func encode(v any) []byte {
	text, err := jsonscan.Marshal(v)
	if err != nil {
		panic("api: " + err.Error()) // structs of strings always encode
	}
	return text
}

// StreamType returns the media type of the dialect's streams.
func (d Dialect) StreamType() string {
	if d == Ollama {
		return "application/x-ndjson"
	}
	return "text/event-stream; charset=utf-8"
}
