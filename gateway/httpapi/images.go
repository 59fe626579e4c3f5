package httpapi

import (
	"encoding/json"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
)

// imageGenerations serves image generations.
func (*Server) imageGenerations(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.canonicalName(); err != nil {
		return err
	}
	if c.engineFamily() == recipe.SDCpp {
		err = c.embedSettings()
	}
	if err != nil {
		return err
	}
	return (&exchange{call: c, path: []byte("/v1/images/generations")}).serveInference()
}

// maxNegative bounds a negative prompt, in bytes: sd-server finds the settings with a regular expression that takes a
// stack frame for each of their characters.
const maxNegative = 4 << 10

// embedSettings copies the settings of an image into the prompt, where sd-server reads them. It ignores them in
// OpenAI's fields, and those of a wrong type anywhere, so these are refused here.
func (c *inferenceCall) embedSettings() error {
	settings, sample, guidance := map[string]any{}, map[string]any{}, map[string]any{}
	fields := []struct {
		name string
		kind jsonscan.Kind
		in   map[string]any
		as   string
	}{
		{"seed", jsonscan.Number, settings, "seed"},
		{"width", jsonscan.Number, settings, "width"}, {"height", jsonscan.Number, settings, "height"},
		{"negative_prompt", jsonscan.String, settings, "negative_prompt"},
		{"steps", jsonscan.Number, sample, "sample_steps"}, {"sample_method", jsonscan.String, sample, "sample_method"},
		{"scheduler", jsonscan.String, sample, "scheduler"},
		{"cfg_scale", jsonscan.Number, guidance, "txt_cfg"}, {"guidance", jsonscan.Number, guidance, "distilled_guidance"},
	}
	names := []string{"prompt"}
	for _, f := range fields {
		names = append(names, f.name)
	}
	values := make([]jsonscan.Value, len(names))
	if err := jsonscan.Scan(c.body, names, values); err != nil {
		return api.BadJSON(err)
	}
	for i, f := range fields {
		v := values[1+i]
		if !v.Set() {
			continue
		}
		n, isWhole := v.Int()
		isFraction := f.as == "txt_cfg" || f.as == "distilled_guidance"
		switch {
		case v.Kind != f.kind, v.Kind == jsonscan.Number && !isWhole && !isFraction, len(v.Raw) > maxNegative:
			return api.Newf(api.InvalidType, "'%s' has a value of the wrong type or size.", f.name).WithParam(f.name)
		case isFraction:
			f.in[f.as] = json.RawMessage(v.Raw)
		case isWhole:
			f.in[f.as] = n
		default:
			f.in[f.as] = v.String()
		}
	}
	if len(guidance) > 0 {
		sample["guidance"] = guidance
	}
	if len(sample) > 0 {
		settings["sample_params"] = sample
	}
	if len(settings) == 0 {
		return nil
	}
	text, err := jsonscan.Marshal(settings)
	if err == nil {
		prompt := values[0].String() + " <sd_cpp_extra_args>" + string(text) + "</sd_cpp_extra_args>"
		c.body, err = jsonscan.SetString(c.body, "prompt", prompt)
	}
	return err
}
