package responses

import (
	"strings"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

var (
	toolMembers   = set("type", "name", "description", "parameters", "strict")
	formatMembers = set("type", "name", "description", "schema", "strict")

	// leftOut are types of tools that clients offer to every model, and that have no counterpart in a chat.
	leftOut = set("local_shell", "shell", "apply_patch", "custom", "image_generation", "namespace", "tool_search")
)

// appendTools appends the functions of the tools, and which of them the model is to call.
func appendTools(dst []byte, q object) ([]byte, error) {
	from, n := len(dst), 0
	dst = append(dst, `,"tools":[`...)
	var err error
	w := jsonscan.WalkOf(q["tools"].Raw)
	w.Array(func() bool {
		if w.Kind() != jsonscan.Object {
			err = badTool("Each of 'tools' must be an object.")
			return false
		}
		tool := read(w.Raw().Raw, toolMembers)
		switch kind := tool["type"].String(); {
		case kind == "function" && tool["name"].Kind == jsonscan.String:
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"type":"function","function":`...)
			dst = append(appendObject(dst, tool, "name", "description", "parameters", "strict"), '}')
		case kind == "function":
			err = badTool("A tool of type 'function' needs a 'name'.")
		case !leftOut[kind] && !strings.HasPrefix(kind, "web_search"):
			err = badTool("A tool's type is not supported: only functions are called.")
		}
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	if n == 0 {
		dst = dst[:from]
	} else {
		dst = append(dst, ']')
	}
	return appendChoice(dst, q["tool_choice"], n > 0)
}

// appendChoice appends which tool the model is to call.
func appendChoice(dst []byte, v jsonscan.Value, tools bool) ([]byte, error) {
	choice := v.String()
	if v.Kind == jsonscan.Object {
		o := read(v.Raw, toolMembers)
		if choice = o["type"].String(); choice == "function" && o["name"].Kind == jsonscan.String && tools {
			dst = append(dst, `,"tool_choice":{"type":"function","function":`...)
			return append(appendObject(dst, o, "name"), '}'), nil
		}
	}
	switch {
	case !v.Set() || v.Kind == jsonscan.String && (choice == "auto" || choice == "none") && !tools:
		return dst, nil
	case v.Kind == jsonscan.String && (choice == "auto" || choice == "none" || choice == "required" && tools):
		return member(dst, "tool_choice", v), nil
	}
	return nil, api.New(api.UnsupportedParameter, "'tool_choice' must be auto, none, required or one of the functions in 'tools'.").WithParam("tool_choice")
}

// appendFormat appends the form that an answer is to have.
func appendFormat(dst []byte, text jsonscan.Value) ([]byte, error) {
	v := read(text.Raw, set("format"))["format"]
	if !v.Set() {
		return dst, nil
	}
	if v.Kind != jsonscan.Object {
		return nil, wrong("text.format", jsonscan.Object)
	}
	format := read(v.Raw, formatMembers)
	switch kind := format["type"].String(); kind {
	case "text":
		return dst, nil
	case "json_object":
		return append(dst, `,"response_format":{"type":"json_object"}`...), nil
	case "json_schema":
		if format["schema"].Kind != jsonscan.Object {
			return nil, wrong("text.format.schema", jsonscan.Object)
		}
		dst = append(dst, `,"response_format":{"type":"json_schema","json_schema":`...)
		return append(appendObject(dst, format, "name", "description", "schema", "strict"), '}'), nil
	}
	return nil, api.New(api.UnsupportedParameter, "The type of 'text.format' must be text, json_object or json_schema.").WithParam("text.format")
}

// appendObject appends an object of those named members that are set.
func appendObject(dst []byte, o object, names ...string) []byte {
	from := len(dst)
	for _, name := range names {
		if v := o[name]; v.Set() {
			dst = member(dst, name, v)
		}
	}
	if len(dst) == from {
		return append(dst, `{}`...)
	}
	dst[from] = '{' // for the first comma
	return append(dst, '}')
}

func badTool(message string) error { return api.New(api.InvalidType, message).WithParam("tools") }
