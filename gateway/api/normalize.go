package api

import (
	"bytes"
	"cmp"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
	"reveille/infra/oom"
	"reveille/infra/redact"
	"reveille/infra/term"
)

// NormalizeError turns the error response of an engine or a runner into an [*Error]. A
// status of 400 to 499 and its message stay, and so does one of 500 and above,
// except where the text shows that the request was at fault: that becomes 400.
// The message loses whatever would reveal where the engine runs: paths,
// addresses, stack traces, and the words given in hide, such as the host's
// name.
func NormalizeError(status int, body []byte, hide ...string) *Error {
	reply := parseReply(body)
	kind, status, certain, say := classify(status, reply)
	if say != "" {
		reply.message = say
	}
	e := New(kind, redact.Response(reply.message, hide...))
	if !certain && status < 500 {
		if code := plainCode.FindString(reply.code); code != "" || status != e.Status {
			e.Code = code
		}
	}
	e.Status = status
	if status < 500 {
		if e.Param = term.Clip(reply.param, 100); e.Param == "" && certain && kind == UnsupportedParameter {
			e.Param = "messages" // media that the model does not take
		}
	}
	if e.Message == "" {
		e.Message = statusText(e.Status)
	}
	return e
}

// NormalizeEvent is NormalizeError for an error that came as an event of a stream, whose status is what its code says:
// an engine's is a number, a runner's one of our own table.
func NormalizeEvent(data []byte, hide ...string) *Error {
	status := http.StatusInternalServerError
	var outer, inner [1]jsonscan.Value
	if jsonscan.Scan(data, []string{"error"}, outer[:]) == nil && jsonscan.Scan(outer[0].Raw, []string{"code"}, inner[:]) == nil {
		switch code := inner[0]; code.Kind {
		case jsonscan.Number:
			if n, err := strconv.Atoi(string(code.Raw)); err == nil && n >= 400 && n < 600 {
				status = n
			}
		case jsonscan.String:
			for _, k := range Kinds() {
				if k.Code() == code.String() && (k.Status() >= 500 || k == InvalidRequest) {
					status = k.Status()
				}
			}
		}
	}
	return NormalizeError(status, data, hide...)
}

// reply is an engine's error.
type reply struct {
	message, typ, code, param string
}

// parseReply understands {"error":{...}}, {"error":"text"}, and objects that
// carry message, detail or error_type themselves; detail may frame the first form. Anything else is plain text.
func parseReply(body []byte) reply {
	var outer [5]jsonscan.Value
	if jsonscan.Scan(body, []string{"error", "message", "detail", "type", "error_type"}, outer[:]) != nil {
		return reply{message: plainText(body)}
	}
	if !outer[0].Set() && outer[2].Kind == jsonscan.Object { // FastAPI's frame around an error in OpenAI's form
		_ = jsonscan.Scan(outer[2].Raw, []string{"error"}, outer[:1])
	}
	r := reply{message: cmp.Or(outer[1].String(), outer[2].String()), typ: cmp.Or(outer[3].String(), outer[4].String())}
	switch e := outer[0]; e.Kind {
	case jsonscan.String:
		r.message = e.String()
	case jsonscan.Object:
		var inner [4]jsonscan.Value
		if jsonscan.Scan(e.Raw, []string{"message", "type", "code", "param"}, inner[:]) == nil {
			r = reply{inner[0].String(), inner[1].String(), inner[2].String(), inner[3].String()}
		}
	}
	if r.message == "" && outer[2].Set() {
		r.message = string(outer[2].Raw) // a list of validation errors
	}
	return r
}

// maxPlainText bounds what is read of a response that is not JSON, in bytes.
const maxPlainText = 8000

// plainText returns body as a message unless it is markup, which says nothing
// a client could use.
func plainText(body []byte) string {
	s := strings.TrimSpace(strings.ToValidUTF8(string(body[:min(len(body), maxPlainText)]), "\uFFFD"))
	if strings.HasPrefix(s, "<") {
		return ""
	}
	return s
}

// errorRule maps a pattern of an engine's error, in lower case, to a kind.
type errorRule struct {
	kind    Kind
	pattern *regexp.Regexp // a group's text follows the message
	message string         // replaces the engine's message where clients would not understand it
}

func newRule(kind Kind, pattern, message string) errorRule {
	return errorRule{kind, regexp.MustCompile(`(?i)` + pattern), message}
}

// requestFaults show that the request cannot be served by this model however
// often it is sent.
var requestFaults = []errorRule{
	newRule(ContextLengthExceeded, `exceed_context_size|exceed(?s:.*)context (?:size|length|window)|maximum context length|larger than the max context size|`+
		`too large to process(?s:.*)batch size|must have less than(?s:.*)tokens`, ""),
	newRule(UnsupportedParameter, `(?:image|audio|video) input is not supported|does not support multimodal|not a multimodal model|provide the mmproj`, ""),
	newRule(InvalidType, `failed to (?:load|decode) (?:image|audio)|failed to read audio|cannot identify image file|invalid (?:image|audio)`, ""),
	newRule(ModelTypeMismatch, `does not support (?:embeddings|reranking|completions|chat|infill)|pooling type(?s:.*)not oai compatible|`+
		`model is not an? (?:embedding model|re-ranker)`, ""),
	newRule(UnsupportedParameter, `infill is not supported`, "This model has no infill tokens."),
	newRule(InvalidType, `failed to parse tools`, "A field of 'tools' is missing or has a value of the wrong type."),
	newRule(InvalidType, `while executing(?s:.*)at line|notimplemented:`, "The model's chat template cannot take these messages or calls of tools."),
	newRule(InvalidType, `failed to parse messages`, "A field of 'messages' is missing or has a value of the wrong type."),
	newRule(InvalidType, `\[json\.exception`, "A field has a value of the wrong type or out of range."),
	newRule(InvalidType, `_m_range_check`, "A token is not one of the model's."),
	newRule(InvalidType, `json schema conversion failed:\s*((?s:.*))`, "The schema is not one that the model's engine can use: "),
	newRule(InvalidType, `failed to parse grammar|failed to initialize samplers`, "The grammar or the schema is not one that the model's engine can use."),
	newRule(InvalidType, `unknown reasoning format`, "'reasoning_format' is not one that the model's engine knows."),
	newRule(InvalidType, `elements must be a string, a list of tokens`, "A prompt must be a text, or a list of texts and tokens."),
	newRule(InvalidType, `unexpected empty grammar stack`, "No text of this model satisfies the grammar or the schema."),
}

// engineFaults match the causes of an engine's 5xx; oom matches more messages about memory.
var engineFaults = []errorRule{
	newRule(EngineOutOfMemory, `bad_alloc`, "The model's engine ran out of memory."),
	newRule(ModelLoading, `loading model`, ""),
	// llama-server says this when the sequences that share its context have filled it. It refuses a longer one at the
	// start.
	newRule(Overloaded, `context size has been exceeded`, "Other requests are using the model's context. Retry the request."),
	newRule(BadEngineReply, `output that does not match the expected`, "The model's output does not match its chat template; another seed or prompt may help."),
}

// matchRule returns the first rule that a text matches, with the message for clients.
func matchRule(faults []errorRule, text string) (kind Kind, say string, ok bool) {
	for _, f := range faults {
		if m := f.pattern.FindStringSubmatch(text); m != nil {
			return f.kind, f.message + strings.Join(m[1:], ""), true
		}
	}
	return 0, "", false
}

// classify returns the kind of an engine's error, the status it is returned
// with, and our words for it where the engine's are of no use. When it is not certain the kind was chosen by the status
// alone, and its code may say too much.
func classify(status int, r reply) (k Kind, clientStatus int, certain bool, message string) {
	if status < 400 || status > 599 {
		return BadEngineReply, BadEngineReply.Status(), true, ""
	}
	if status == http.StatusUnauthorized || status == http.StatusForbidden { // about the runner's key, not the client's
		return BadEngineReply, BadEngineReply.Status(), true, "The model's engine refused this gateway."
	}
	if k, ok := KindOf(r.code, status); ok {
		return k, status, true, "" // a runner speaks our own table
	}
	if (status == http.StatusNotFound || status == http.StatusMethodNotAllowed) && noRoute.MatchString(r.message) {
		return NotSupported, NotSupported.Status(), true, "The model's engine does not serve this route."
	}
	text := r.typ + "\n" + r.message
	if kind, message, ok := matchRule(engineFaults, text); ok && status >= 500 {
		return kind, kind.Status(), true, message
	}
	if kind, message, ok := matchRule(requestFaults, text); ok {
		if status >= 500 {
			status = http.StatusBadRequest
		}
		return kind, status, true, message
	}
	if status >= 500 && oom.IsOutOfMemory(r.message) {
		return EngineOutOfMemory, EngineOutOfMemory.Status(), true, ""
	}
	if internals.MatchString(r.message) {
		message = "The model's engine failed on this request."
	}
	return byStatus(status), status, false, message
}

// noRoute matches what engines answer for a path that they do not serve, some nothing at all.
var noRoute = regexp.MustCompile(`^(?i:(file )?not found\.?|method not allowed)?$`)

// internals are words of a C++ library, which an exception's text holds.
var internals = regexp.MustCompile(`\bstd::|\b_M_|\[json\.exception|\b(?:basic_string|vector|map|unordered_map)::|^sto[a-z]+$`)

// byStatus returns a kind whose type and retry advice fit a status.
func byStatus(status int) Kind {
	switch status {
	case http.StatusTooManyRequests:
		return RateLimitExceeded
	case http.StatusNotImplemented:
		return NotSupported
	case http.StatusBadGateway:
		return BadEngineReply
	case http.StatusServiceUnavailable:
		return Overloaded
	case http.StatusGatewayTimeout:
		return UpstreamTimeout
	}
	if status >= 500 {
		return InternalError
	}
	return InvalidRequest
}

// plainCode matches an engine's own code if it looks like one.
var plainCode = regexp.MustCompile(`^[a-z_]{1,64}$`)

// IsWebPage reports whether a response's content type is that of a web page, as from a web server or proxy. The only
// engine that announces one is whisper-server, of a text.
func IsWebPage(contentType []byte) bool {
	media, _, _ := bytes.Cut(contentType, []byte(";"))
	switch strings.ToLower(string(bytes.TrimSpace(media))) {
	case "text/html", "application/xhtml+xml", "image/svg+xml":
		return true
	}
	return false
}
