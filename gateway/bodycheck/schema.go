package bodycheck

import (
	"bytes"
	"slices"
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

const (
	maxSchema      = 256 << 10 // bytes of all tools, of a schema, of a grammar
	maxSchemaDepth = 100
	// llama.cpp takes no numeric bounds beyond maxBound, and no maxLength of more digits than maxLengthDigits.
	maxBound        = 999_999_999_999_999
	maxLengthDigits = 4
)

// constraints checks the members that constrain what a model may say.
func (c *Check) constraints(model func() Model) error {
	if len(c.values[grammar].Raw) > maxSchema {
		return tooLarge("grammar")
	}
	if err := dropNulls(c.values[tools]); err != nil {
		return err
	}
	for _, s := range [...]struct {
		rule      rule
		param     string
		mayIgnore bool
	}{{tools, "tools", true}, {jsonSchema, "json_schema", false}, {outputConfig, "output_config", false}, {responseFormat, "response_format", false}} {
		if v := c.values[s.rule]; v.Set() {
			if err := checkSchemas(s.param, v, model().LlamaCpp, s.mayIgnore); err != nil {
				return err
			}
		}
	}
	if v := c.values[outputConfig]; isConstraint(member(v, "format")) && model().LlamaCpp {
		return api.New(api.UnsupportedParameter, "llama-server cannot constrain the responses of /v1/messages to a schema. "+
			"Use /v1/chat/completions, /v1/responses or /api/chat.").WithParam("output_config.format")
	}
	if v := c.values[responseFormat]; isConstraint(v) && model().LlamaCpp {
		c.format = llamaFormat(v)
	}
	return nil
}

// member returns a member of an object.
func member(v jsonscan.Value, name string) (found jsonscan.Value) {
	if v.Kind != jsonscan.Object {
		return found
	}
	for m := jsonscan.MembersOf(v); m.Next(); {
		if string(m.Name()) == name {
			found = m.Value()
		}
	}
	return found
}

// isConstraint reports whether a format is more than a plain text.
func isConstraint(format jsonscan.Value) bool {
	return format.Kind == jsonscan.Object && member(format, "type").String() != "text"
}

// llamaFormat returns what llama.cpp gets in place of a json_object without a schema, for which it would constrain
// nothing: the schema that clients of Text Generation Inference give as value, or that of any object. It returns nil
// for other formats.
func llamaFormat(v jsonscan.Value) []byte {
	if member(v, "type").String() != "json_object" || member(v, "schema").Kind != jsonscan.Absent {
		return nil
	}
	schema := []byte(`{"type":"object"}`)
	if value := member(v, "value"); value.Kind == jsonscan.Object {
		schema = value.Raw
	}
	return slices.Concat([]byte(`{"type":"json_object","schema":`), schema, []byte(`}`))
}

// dropNulls blanks nulls of messages and tools and of their functions, such as a description: engines refuse what they
// might pass over. A null content stays, which templates want.
func dropNulls(list jsonscan.Value) (err error) {
	if list.Kind != jsonscan.Array || !bytes.Contains(list.Raw, []byte("null")) {
		return nil
	}
	w := jsonscan.WalkOf(list.Raw)
	w.Array(func() bool {
		item := w.Raw()
		if item.Kind != jsonscan.Object {
			return true
		}
		err = filter(item, func(name []byte, v jsonscan.Value) (keep bool, err error) {
			if string(name) == "function" && v.Kind == jsonscan.Object {
				err = filter(v, func(_ []byte, v jsonscan.Value) (bool, error) { return v.Set(), nil })
			}
			return v.Set() || string(name) == "content", err
		})
		return err == nil
	})
	return err
}

// checkSchemas checks all schemas in v, however deep they are: their bytes, nesting, and that references are local. For
// llama.cpp it lowers bounds of numbers that the engine rejects, as zod has them, to the largest that it accepts, and
// renames such lengths of texts, as Claude Code has them, where an engine may ignore them.
func checkSchemas(param string, v jsonscan.Value, llamaCpp, mayIgnore bool) (err error) {
	if len(v.Raw) > maxSchema {
		return tooLarge(param)
	}
	w := jsonscan.WalkOf(v.Raw)
	var look func(depth int) bool
	look = func(depth int) bool {
		if depth > maxSchemaDepth {
			err = tooLarge(param)
			return false
		}
		switch w.Kind() {
		case jsonscan.Array:
			return w.Array(func() bool { return look(depth + 1) })
		case jsonscan.Object:
			return w.Object(func(name []byte) bool {
				switch kind := w.Kind(); {
				case kind == jsonscan.String && string(name) == "$ref":
					if ref := w.Raw(); !bytes.HasPrefix(ref.Bytes(), []byte("#")) {
						err = api.New(api.UnsupportedParameter, "A '$ref' must start with '#' and refer to the same schema.").WithParam(param)
					}
				case kind == jsonscan.Number && llamaCpp:
					relaxKeyword(name, w.Raw().Raw, mayIgnore)
				default:
					return look(depth + 1)
				}
				return err == nil
			})
		}
		w.Raw()
		return true
	}
	look(0)
	return err
}

// relaxKeyword overwrites a keyword of a schema, or its number, that llama.cpp would reject.
func relaxKeyword(name, number []byte, mayIgnore bool) {
	switch string(name) {
	case "maxLength":
		if mayIgnore && len(number) > maxLengthDigits {
			copy(name, "x-maxText") // of the same length
		}
	case "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum":
		f, err := strconv.ParseFloat(string(number), 64)
		if err == nil && f >= -maxBound && f <= maxBound {
			return
		}
		sign := ""
		if number[0] == '-' {
			sign = "-"
		}
		bound := sign + strconv.Itoa(maxBound)
		if len(number) < len(bound) {
			bound = sign + "9e14"
		}
		overwrite(number, []byte(bound))
	}
}

func tooLarge(param string) error {
	return api.Newf(api.InvalidType, "'%s' is too large; at most %d bytes and %d levels are accepted.", param, maxSchema, maxSchemaDepth).WithParam(param)
}
