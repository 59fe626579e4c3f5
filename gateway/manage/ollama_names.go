package manage

import (
	"encoding/json"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/web"
)

// ollamaCopy is POST /api/copy: the model gets a further name.
func (s *Service) ollamaCopy(r *web.Request) error {
	body, err := r.Members()
	if err != nil {
		return err
	}
	source, err := web.TextOf(body, "source")
	if err != nil {
		return err
	}
	name, err := web.TextOf(body, "destination")
	if err != nil {
		return err
	}
	m, err := s.dir.Named(&r.Key, source)
	if err != nil {
		return err
	}
	if err := s.nameModel(m, untagged(name), "destination"); err != nil {
		return err
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, nil)
	return nil
}

// untagged returns a name without the tag that Ollama's clients add to every name: models are found with it as well.
func untagged(name string) string { return strings.TrimSuffix(name, ":latest") }

// ollamaCreate is POST /api/create for a model that is another one under a new name. One with a prompt, a template,
// parameters, adapters or weights of its own is not made: these belong into the models file.
func (s *Service) ollamaCreate(r *web.Request) error {
	values, err := r.Fields()
	if err != nil {
		return err
	}
	name := r.Match.Route.ModelName(values)
	if name.Empty() {
		return api.NoModel()
	}
	body, err := r.Members()
	if err != nil {
		return err
	}
	for _, own := range []string{"files", "adapters", "quantize", "template", "system", "messages", "parameters", "modelfile", "path"} {
		if v := body[own]; meansSomething(v) {
			return api.Newf(api.NotSupported, "A model with '%s' is not made here; describe it in the models file.", own).WithParam(own)
		}
	}
	from, err := web.TextOf(body, "from")
	if err != nil {
		return err
	}
	m, err := s.dir.Named(&r.Key, from)
	if err != nil {
		return err
	}
	if err := s.nameModel(m, untagged(name.String()), "model"); err != nil {
		return err
	}
	line, err := json.Marshal(ollamaPulled)
	if err != nil {
		return err
	}
	media := "application/json"
	if r.Match.Route.Stream(values) {
		media, line = api.Ollama.StreamType(), append(line, '\n')
	}
	r.Send(fasthttp.StatusOK, media, line)
	return nil
}

// meansSomething reports whether a member of a body is neither absent nor empty.
func meansSomething(v json.RawMessage) bool {
	switch string(v) {
	case "", "null", `""`, "{}", "[]":
		return false
	}
	return true
}
