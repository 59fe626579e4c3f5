package cohere

import (
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// ChatPath is the engine's path for what Translate writes.
const ChatPath = "/v1/chat/completions"

// toolChoices are Cohere's and the engines' names.
var toolChoices = map[string]string{"": "", "REQUIRED": "required", "NONE": "none"}

// same are members that differ in their name alone.
var same = [...]struct{ cohere, engine string }{
	{"p", "top_p"}, {"k", "top_k"}, {"max_tokens", "max_tokens"}, {"temperature", "temperature"}, {"seed", "seed"}, {"stop_sequences", "stop"},
	{"frequency_penalty", "frequency_penalty"}, {"presence_penalty", "presence_penalty"},
}

var members = func() []string {
	names := []string{"messages", "tools", "tool_choice", "response_format", "logprobs"}
	for _, m := range same {
		names = append(names, m.cohere)
	}
	return names
}()

// Translate writes the chat that a request asks for. body is a valid JSON object. Its texts are copied as they stand, and nothing
// is decoded: an item of three bytes would take a hundred. An error is one for the client.
func Translate(body []byte, model string, stream bool) ([]byte, error) {
	v := make([]jsonscan.Value, len(members))
	if err := jsonscan.Scan(body, members, v); err != nil {
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	messages, tools, toolChoice, format, logprobs := v[0], v[1], v[2], v[3], v[4]
	choice, known := toolChoices[toolChoice.String()]
	switch {
	case !known || toolChoice.Set() && toolChoice.Kind != jsonscan.String:
		return nil, api.New(api.InvalidType, "'tool_choice' must be REQUIRED or NONE.").WithParam("tool_choice")
	case logprobs.Set() && logprobs.Kind != jsonscan.Bool:
		return nil, api.New(api.InvalidType, "'logprobs' must be true or false.").WithParam("logprobs")
	case logprobs.Bool():
		return nil, api.New(api.UnsupportedParameter, "'logprobs' is not supported here.").WithParam("logprobs")
	}
	chat := append(make([]byte, 0, len(body)+len(body)/8+512), `{"model":`...)
	chat = jsonscan.AppendQuote(chat, model)
	chat = strconv.AppendBool(append(chat, `,"stream":`...), stream)
	if stream {
		chat = append(chat, `,"stream_options":{"include_usage":true}`...)
	}
	chat, err := appendMessages(append(chat, `,"messages":[`...), messages)
	if err != nil {
		return nil, err
	}
	chat = append(chat, ']')
	if tools.Set() {
		chat = append(append(chat, `,"tools":`...), tools.Raw...)
	}
	if choice != "" {
		chat = jsonscan.AppendQuote(append(chat, `,"tool_choice":`...), choice)
	}
	if chat, err = appendFormat(chat, format); err != nil {
		return nil, err
	}
	for i, m := range same {
		if value := v[len(members)-len(same)+i]; value.Set() {
			chat = jsonscan.AppendQuote(append(chat, ','), m.engine)
			chat = append(append(chat, ':'), value.Raw...)
		}
	}
	return append(chat, '}'), nil
}

var formatMembers = []string{"type", "json_schema", "schema"} // the last is an older name

func appendFormat(dst []byte, format jsonscan.Value) ([]byte, error) {
	if !format.Set() {
		return dst, nil
	}
	var v [3]jsonscan.Value
	if format.Kind != jsonscan.Object || jsonscan.Scan(format.Raw, formatMembers, v[:]) != nil {
		return nil, api.New(api.InvalidType, "'response_format' must be an object.").WithParam("response_format")
	}
	schema := v[1]
	if !schema.Set() {
		schema = v[2]
	}
	switch kind := v[0].String(); {
	case kind == "text":
		return dst, nil
	case kind != "json_object":
		return nil, api.New(api.InvalidType, "The type of 'response_format' must be text or json_object.").WithParam("response_format")
	case !schema.Set():
		return append(dst, `,"response_format":{"type":"json_object"}`...), nil
	}
	dst = append(append(dst, `,"response_format":{"json_schema":{"name":"answer","schema":`...), schema.Raw...)
	return append(dst, `,"strict":true},"type":"json_schema"}`...), nil
}

func appendMessages(dst []byte, messages jsonscan.Value) (_ []byte, err error) {
	n := 0
	w := jsonscan.WalkOf(messages.Raw)
	w.Array(func() bool {
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst, err = appendMessage(dst, w.Raw())
		return err == nil
	})
	return dst, err
}

var messageMembers = []string{"role", "content", "tool_plan", "tool_calls", "tool_call_id"}

func appendMessage(dst []byte, message jsonscan.Value) ([]byte, error) {
	var v [5]jsonscan.Value
	if message.Kind != jsonscan.Object || jsonscan.Scan(message.Raw, messageMembers, v[:]) != nil {
		return nil, refuse("Each message must be an object.")
	}
	role, content, plan, calls, result := v[0], v[1], v[2], v[3], v[4]
	switch role.String() {
	case "user", "assistant", "system", "tool":
	default:
		return nil, refuse("A message's 'role' must be user, assistant, system or tool.")
	}
	if !isText(plan) || !isText(result) {
		return nil, refuse("A message's 'tool_plan' and 'tool_call_id' must be texts.")
	}
	dst = append(append(dst, `{"role":`...), role.Raw...)
	dst, thoughts, err := appendContent(append(dst, `,"content":`...), content)
	if err != nil {
		return nil, err
	}
	if thoughts = append(inner(plan), thoughts...); len(thoughts) > 0 {
		dst = append(append(append(dst, `,"reasoning_content":"`...), thoughts...), '"')
	}
	if calls.Set() {
		dst = append(append(dst, `,"tool_calls":`...), calls.Raw...)
	}
	if !result.Empty() {
		dst = append(append(dst, `,"tool_call_id":`...), result.Raw...)
	}
	return append(dst, '}'), nil
}

// isText reports whether v is a text or absent.
func isText(v jsonscan.Value) bool { return !v.Set() || v.Kind == jsonscan.String }

// inner is a text without its quotes, as it stands in the body; nil for none. Appending to it does not change the body.
func inner(text jsonscan.Value) []byte {
	if !text.Set() {
		return nil
	}
	end := len(text.Raw) - 1
	return text.Raw[1:end:end]
}

var partMembers = []string{"type", "text", "thinking", "image_url", "document"}

// appendContent appends a message's content: a text, or a list of parts if it has not just one text. thoughts are those of its
// parts, as they stand in the body, without quotes.
func appendContent(dst []byte, content jsonscan.Value) (_, thoughts []byte, err error) {
	switch content.Kind {
	case jsonscan.Absent, jsonscan.Null:
		return append(dst, `""`...), nil, nil
	case jsonscan.String:
		return append(dst, content.Raw...), nil, nil
	case jsonscan.Array:
	default:
		return nil, nil, refuse("A message's 'content' must be a text or a list of parts.")
	}
	const before = `{"type":"text","text":`
	n, texts, from := 0, 0, len(dst)
	dst = append(dst, '[')
	w := jsonscan.WalkOf(content.Raw)
	w.Array(func() bool {
		var v [5]jsonscan.Value
		part := w.Raw()
		if part.Kind != jsonscan.Object || jsonscan.Scan(part.Raw, partMembers, v[:]) != nil {
			err = refuse("A message's 'content' must be a text or a list of parts.")
			return false
		}
		text, thinking, image, document := v[1], v[2], v[3], v[4]
		if !isText(text) || !isText(thinking) {
			err = refuse("The 'text' and the 'thinking' of a content part must be texts.")
			return false
		}
		kind := v[0].String()
		if kind == "thinking" {
			thoughts = append(thoughts, inner(thinking)...)
			return true
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		switch kind {
		case "text":
			texts++
			dst = append(append(append(append(dst, before...), '"'), inner(text)...), `"}`...)
		case "document": // of a tool's result: an object or a text
			texts++
			dst = append(jsonscan.AppendQuote(append(dst, before...), string(document.Raw)), '}')
		case "image_url":
			dst = append(dst, `{"type":"image_url"`...)
			if image.Set() {
				dst = append(append(dst, `,"image_url":`...), image.Raw...)
			}
			dst = append(dst, '}')
		default:
			err = refuse("A content part's type must be text, thinking, image_url or document.")
		}
		return err == nil
	})
	switch {
	case err != nil:
		return nil, nil, err
	case n == 0:
		return append(dst[:from], `""`...), thoughts, nil
	case n == 1 && texts == 1: // the text alone
		only := dst[from+1+len(before) : len(dst)-1]
		return append(dst[:from], only...), thoughts, nil
	}
	return append(dst, ']'), thoughts, nil
}

func refuse(message string) error { return api.New(api.InvalidType, message).WithParam("messages") }
