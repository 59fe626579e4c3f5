package bodycheck

import (
	"slices"

	"reveille/gateway/api"
	"reveille/gateway/constraint"
	"reveille/infra/jsonscan"
)

// constraints checks the members that constrain what a model may say.
func (c *Check) constraints(model func() Model) error {
	if v := c.values[toolsSlot]; !v.Empty() {
		c.Constrained = true
		if err := (constraint.Schemas{Param: "tools", Llama: model().Llama, Lenient: true}).Check(v); err != nil {
			return err
		}
	}
	for _, at := range [...]struct {
		slot  valueID
		param string
	}{{formatSlot, "response_format"}, {schemaSlot, "json_schema"}, {outputSlot, "output_config"}} {
		v := c.values[at.slot]
		if !v.Set() || v.Kind != jsonscan.Object {
			continue
		}
		if at.slot == outputSlot && model().Llama && hasFormat(v) {
			return api.New(api.UnsupportedParameter, "llama-server does not constrain what it answers to messages. "+
				"/v1/chat/completions, /v1/responses and /api/chat have answers by a schema.").WithParam("output_config.format")
		}
		if at.slot == schemaSlot || at.slot == formatSlot && hasSchema(v) || at.slot == outputSlot && hasFormat(v) {
			c.Constrained, c.shaped, c.formatted = true, true, true
		}
		if at.slot == formatSlot && model().Llama {
			if c.Format = llamaFormat(v); c.Format != nil {
				var as [1]jsonscan.Value
				if err := jsonscan.Scan(slices.Concat([]byte(`{"":`), c.Format, []byte(`}`)), []string{""}, as[:]); err != nil {
					return err
				}
				v = as[0]
			}
		}
		if err := (constraint.Schemas{Param: at.param, Llama: model().Llama}).Check(v); err != nil {
			return err
		}
	}
	if v := c.values[grammarSlot]; v.Set() && !v.Empty() {
		c.Constrained, c.shaped = true, true
		if err := constraint.Grammar("grammar", v); err != nil {
			return err
		}
	}
	if c.Constrained && model().Llama {
		if e := c.deadEnds(); e != nil {
			return e
		}
	}
	return nil
}

// hasFormat reports whether the output_config of a message asks for more than a plain text. Without a format it may hold an effort.
func hasFormat(config jsonscan.Value) bool {
	var format [1]jsonscan.Value
	return jsonscan.Scan(config.Raw, []string{"format"}, format[:]) == nil && format[0].Kind == jsonscan.Object && hasSchema(format[0])
}

// hasSchema reports whether a format is more than a plain text.
func hasSchema(v jsonscan.Value) bool {
	plain := false
	w := jsonscan.WalkOf(v.Raw)
	w.Object(func(name []byte) bool {
		if string(name) == "type" {
			plain = oneOf(w.Raw(), []string{"text"})
		}
		return true
	})
	return !plain
}

// llamaFormat returns what llama.cpp gets in place of a json_object without a schema, for which it would constrain nothing: the schema
// that clients of Text Generation Inference give as value, or that of any object. It returns nil for other formats.
func llamaFormat(v jsonscan.Value) []byte {
	object, given := false, false
	schema := []byte(`{"type":"object"}`)
	w := jsonscan.WalkOf(v.Raw)
	w.Object(func(name []byte) bool {
		switch string(name) {
		case "type":
			object = oneOf(w.Raw(), []string{"json_object"})
		case "schema":
			given = true
		case "value":
			if v := w.Raw(); v.Kind == jsonscan.Object {
				schema = v.Raw
			}
		}
		return true
	})
	if !object || given {
		return nil
	}
	return slices.Concat([]byte(`{"type":"json_object","schema":`), schema, []byte(`}`))
}
