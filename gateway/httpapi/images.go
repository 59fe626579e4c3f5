package httpapi

import (
	"encoding/json"
	"slices"
	"strings"

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

// imageEdits serves image edits.
func (*Server) imageEdits(r *request) error {
	c, err := r.parse()
	if err == nil && c.engineFamily() == recipe.SDCpp {
		err = c.embedFormSettings()
	}
	if err != nil {
		return err
	}
	return (&exchange{call: c, path: []byte("/v1/images/edits")}).serveInference()
}

// samplers and schedulers are those of stable-diffusion.cpp of May 2026, which ignores names that it does not know.
var (
	samplers = []string{"euler", "euler_a", "heun", "dpm2", "dpm++2s_a", "dpm++2m", "dpm++2mv2", "ipndm", "ipndm_v", "lcm", "ddim_trailing",
		"tcd", "res_multistep", "res_2s", "er_sde"}
	schedulers = []string{"discrete", "karras", "exponential", "ays", "gits", "sgm_uniform", "simple", "smoothstep", "kl_optimal", "lcm",
		"bong_tangent"}
)

// An imageField is a setting of an image. It is called as in a group of sd-server's settings.
type imageField struct {
	name      string
	kind      jsonscan.Kind
	group, as string
	values    []string // those that there are; nil for any
}

var imageFields = []imageField{
	{"seed", jsonscan.Number, "", "seed", nil},
	{"width", jsonscan.Number, "", "width", nil}, {"height", jsonscan.Number, "", "height", nil},
	{"negative_prompt", jsonscan.String, "", "negative_prompt", nil},
	{"steps", jsonscan.Number, "sample_params", "sample_steps", nil},
	{"sample_method", jsonscan.String, "sample_params", "sample_method", samplers},
	{"scheduler", jsonscan.String, "sample_params", "scheduler", schedulers},
	{"cfg_scale", jsonscan.Number, "guidance", "txt_cfg", nil}, {"guidance", jsonscan.Number, "guidance", "distilled_guidance", nil},
}

// maxNegative bounds a negative prompt, in bytes: sd-server finds the settings with a regular expression that takes a
// stack frame for each of their characters.
const maxNegative = 4 << 10

// embedSettings copies the settings of an image into the prompt, where sd-server reads them. It ignores them in
// OpenAI's fields, and those of a wrong type anywhere, so these are refused here.
func (c *inferenceCall) embedSettings() error {
	settings, err := imageSettings(c.body)
	if err != nil || settings == "" {
		return err
	}
	var prompt [1]jsonscan.Value
	if err := jsonscan.Scan(c.body, []string{"prompt"}, prompt[:]); err != nil {
		return api.BadJSON(err)
	}
	c.body, err = jsonscan.SetString(c.body, "prompt", prompt[0].String()+settings)
	return err
}

// embedFormSettings is embedSettings for a form.
func (c *inferenceCall) embedFormSettings() error {
	boundary, _ := jsonscan.Boundary(string(c.Ctx.Request.Header.ContentType()))
	fields, prompt := map[string]any{}, ""
	var prompts []jsonscan.Part
	err := jsonscan.EachPart(c.body, boundary, func(name string, p jsonscan.Part) {
		i := slices.IndexFunc(imageFields, func(f imageField) bool { return f.name == name })
		switch {
		case name == "prompt":
			prompt, prompts = p.String(), append(prompts, p)
		case i < 0:
		case imageFields[i].kind == jsonscan.Number && json.Valid(p.Value):
			fields[name] = json.RawMessage(p.Value)
		default:
			fields[name] = p.String()
		}
	})
	if err != nil || len(fields) == 0 {
		return err
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	settings, err := imageSettings(text)
	if err == nil {
		c.body = jsonscan.PrependPart(jsonscan.RemoveParts(c.body, prompts), boundary, "prompt", prompt+settings)
	}
	return err
}

// imageSettings returns what the prompt ends in for the settings of a JSON body, "" for none.
func imageSettings(body []byte) (string, error) {
	var names []string
	for _, f := range imageFields {
		names = append(names, f.name)
	}
	values := make([]jsonscan.Value, len(names))
	if err := jsonscan.Scan(body, names, values); err != nil {
		return "", api.BadJSON(err)
	}
	groups := map[string]map[string]any{"": {}, "sample_params": {}, "guidance": {}}
	for i, f := range imageFields {
		v := values[i]
		if !v.Set() {
			continue
		}
		n, isWhole := v.Int()
		isFraction := f.group == "guidance"
		switch {
		case v.Kind != f.kind, v.Kind == jsonscan.Number && !isWhole && !isFraction, len(v.Raw) > maxNegative:
			return "", api.Newf(api.InvalidType, "'%s' has a value of the wrong type or size.", f.name).WithParam(f.name)
		case f.values != nil && !slices.Contains(f.values, v.String()):
			return "", api.Newf(api.InvalidType, "'%s' must be one of %s.", f.name, strings.Join(f.values, ", ")).WithParam(f.name)
		case isFraction:
			groups[f.group][f.as] = json.RawMessage(v.Raw)
		case isWhole:
			groups[f.group][f.as] = n
		default:
			groups[f.group][f.as] = v.String()
		}
	}
	settings, sample := groups[""], groups["sample_params"]
	if len(groups["guidance"]) > 0 {
		sample["guidance"] = groups["guidance"]
	}
	if len(sample) > 0 {
		settings["sample_params"] = sample
	}
	if len(settings) == 0 {
		return "", nil
	}
	text, err := jsonscan.Marshal(settings)
	return " <sd_cpp_extra_args>" + string(text) + "</sd_cpp_extra_args>", err
}
