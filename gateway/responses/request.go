package responses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Paths of an engine for what Translate writes.
const (
	ChatPath        = "/v1/chat/completions"
	InputTokensPath = "/v1/chat/completions/input_tokens"
)

// Echo holds the members of a request that its responses repeat.
type Echo map[string]json.RawMessage

// echoed are these members, with what responses have in place of one that is absent or too long to be repeated.
var echoed = map[string]string{
	"instructions": "null", "max_output_tokens": "null", "max_tool_calls": "null", "metadata": "{}", "parallel_tool_calls": "true",
	"prompt_cache_key": "null", "reasoning": `{"effort":null,"summary":null}`, "safety_identifier": "null", "temperature": "null",
	"text": `{"format":{"type":"text"}}`, "tool_choice": `"auto"`, "tools": "[]", "top_p": "null", "truncation": `"disabled"`, "user": "null",
}

// maxEcho is the longest member that responses repeat, in bytes: they do so three times in a stream.
const maxEcho = 64 << 10

// forwarded are members of a chat by the name that they have in a request.
var forwarded = map[string]string{
	"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed", "stop": "stop",
	"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "repeat_penalty": "repeat_penalty",
	"parallel_tool_calls": "parallel_tool_calls", "metadata": "metadata", "chat_template_kwargs": "chat_template_kwargs",
	"max_output_tokens": "max_tokens",
}

// unsupported are members that ask for what is not done here.
var unsupported = map[string]string{
	"conversation": "conversations are not stored; send the whole conversation in 'input'",
	"prompt":       "prompts are not stored; send the text in 'instructions' or 'input'",
	"background":   "responses are not made in the background; send the request without it",
}

type chatTool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

type responseFormat struct {
	Type   string      `json:"type"`
	Schema *jsonSchema `json:"json_schema,omitempty"`
}

type jsonSchema struct {
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// Translate writes the chat that a request asks for. body is a valid JSON object. An error is one for the client.
func Translate(body []byte, model string, stream bool) (engine []byte, echo Echo, err error) {
	var q map[string]json.RawMessage
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, nil, api.BadJSON(err)
	}
	for name, why := range unsupported {
		if v := q[name]; !isAbsent(v) && string(v) != "false" {
			return nil, nil, api.Newf(api.UnsupportedParameter, "'%s' is not supported: %s.", name, why).WithParam(name)
		}
	}
	chat := map[string]any{"model": model, "stream": stream}
	if stream {
		chat["stream_options"] = map[string]bool{"include_usage": true}
	}
	for own, name := range forwarded {
		if v := q[own]; !isAbsent(v) {
			chat[name] = v
		}
	}
	if chat["messages"], err = messagesOf(q["instructions"], q["input"]); err != nil {
		return nil, nil, err
	}
	tools, err := toolsOf(q["tools"])
	if err != nil {
		return nil, nil, err
	}
	if len(tools) > 0 {
		chat["tools"] = tools
	}
	if choice, err := choiceOf(q["tool_choice"], len(tools) > 0); err != nil {
		return nil, nil, err
	} else if choice != nil {
		chat["tool_choice"] = choice
	}
	if format, err := formatOf(q["text"]); err != nil {
		return nil, nil, err
	} else if format != nil {
		chat["response_format"] = format
	}
	echo = Echo{}
	for name, absent := range echoed {
		if echo[name] = q[name]; isAbsent(q[name]) || len(q[name]) > maxEcho {
			echo[name] = json.RawMessage(absent)
		}
	}
	engine, err = jsonscan.Marshal(chat)
	return engine, echo, err
}

// isAbsent reports whether a member is absent or null.
func isAbsent(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// ignoredTools are types of tools that clients offer to every model, and that have no counterpart in a chat.
var ignoredTools = []string{"local_shell", "shell", "apply_patch", "custom", "image_generation", "namespace", "tool_search"}

// toolsOf returns the functions of the tools.
func toolsOf(raw json.RawMessage) (tools []chatTool, err error) {
	invalid := func(message string) error { return api.New(api.InvalidType, message).WithParam("tools") }
	var list []struct {
		Type string
		function
	}
	if len(raw) > 0 && json.Unmarshal(raw, &list) != nil {
		return nil, invalid("'tools' must be a list of objects with a 'type' and a 'name'.")
	}
	for _, t := range list {
		t.Type = cmp.Or(t.Type, "function")
		switch {
		case t.Type == "function" && t.Name != "":
			tools = append(tools, chatTool{"function", t.function})
		case t.Type == "function":
			return nil, invalid("A tool of type 'function' needs a 'name'.")
		case !slices.Contains(ignoredTools, t.Type) && !strings.HasPrefix(t.Type, "web_search"):
			return nil, invalid("A tool's type is not supported: only functions are called.")
		}
	}
	return tools, nil
}

// choiceOf returns which tool the model is to call, nil where it does not matter.
func choiceOf(raw json.RawMessage, tools bool) (choice any, err error) {
	if isAbsent(raw) {
		return nil, nil
	}
	var text string
	var object struct{ Type, Name string }
	switch {
	case json.Unmarshal(raw, &text) == nil && (text == "auto" || text == "none"):
		if !tools {
			return nil, nil
		}
		return text, nil
	case text == "required" && tools:
		return text, nil
	case json.Unmarshal(raw, &object) == nil && object.Type == "function" && object.Name != "" && tools:
		return chatTool{"function", function{Name: object.Name}}, nil
	}
	return nil, api.New(api.UnsupportedParameter, "'tool_choice' must be auto, none, required or one of the functions in 'tools'.").WithParam("tool_choice")
}

// formatOf returns the form that a response is to have, nil for text.
func formatOf(raw json.RawMessage) (*responseFormat, error) {
	var text struct {
		Format struct {
			Type string
			jsonSchema
		}
	}
	if len(raw) > 0 && json.Unmarshal(raw, &text) != nil {
		return nil, api.New(api.InvalidType, "'text' must be an object with an object 'format'.").WithParam("text")
	}
	switch text.Format.Type {
	case "", "text":
		return nil, nil
	case "json_object":
		return &responseFormat{Type: "json_object"}, nil
	case "json_schema":
		if schema := text.Format.Schema; len(schema) == 0 || schema[0] != '{' {
			return nil, api.New(api.InvalidType, "'text.format.schema' must be a JSON object.").WithParam("text.format.schema")
		}
		return &responseFormat{"json_schema", &text.Format.jsonSchema}, nil
	}
	return nil, api.New(api.UnsupportedParameter, "The type of 'text.format' must be text, json_object or json_schema.").WithParam("text.format")
}

// NameRequestFields names members of the request in an error about its chat. nil stays nil.
func NameRequestFields(err error) error {
	if err == nil {
		return nil
	}
	e := api.As(err)
	for chat, own := range map[string]string{"messages": "input", "response_format": "text", "max_tokens": "max_output_tokens"} {
		if e.Param == chat {
			e.Param = own
			e.Message = string(bytes.ReplaceAll([]byte(e.Message), []byte("'"+chat+"'"), []byte("'"+own+"'")))
			return e
		}
	}
	return e
}
