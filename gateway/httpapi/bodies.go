package httpapi

import (
	"cmp"

	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// checkBody applies the rules for engine bodies to a body that the gateway wrote itself, or that goes to an engine's own path.
func (c *call) checkBody(spec *bodycheck.Spec) error {
	var check bodycheck.Check
	if err := check.Read(spec, c.body); err != nil {
		return api.BadJSON(err)
	}
	return c.finishCheck(&check, spec)
}

// finishCheck ends the check of a body after all its members were seen.
func (c *call) finishCheck(check *bodycheck.Check, spec *bodycheck.Spec) error {
	dropped, err := check.Finish(spec, c.body, c.engineModel)
	if err != nil {
		return err
	}
	c.s.m.droppedFields.Add(dropped)
	c.text = check.AllText
	if err := c.s.checkContext(c.model, check.TextBytes, c.context); err != nil {
		return err
	}
	if check.Format != nil {
		c.body, err = jsonscan.Set(c.body, "response_format", check.Format)
	}
	return err
}

const (
	freeText    = 64 << 10 // bytes of text allowed for every model
	tokenText   = 16       // further bytes for each token of the context: plain text has 2 to 6, escaped text up to 12
	longContext = 1 << 20  // tokens, for a model whose context is unknown
)

// checkContext refuses a text that cannot fit into a model's context, or into the context of a load that the request asks for.
// Engines read all of the text before they notice, and templates and tokenizers may take time quadratic in its length.
func (s *Server) checkContext(m *catalog.Model, text int, asked int64) error {
	if text <= freeText || m.Type != policy.LLM {
		return nil
	}
	cat := s.cfg.Catalog()
	context, most := s.dir.ContextOf(m, s.dir.WeightsOf(cat, m), s.dir.Effective(cat, m))
	if int64(text) > freeText+tokenText*max(asked, cmp.Or(context, most, longContext)) {
		return api.Newf(api.ContextLengthExceeded, "The request has %d bytes of text, far more than the model's context can hold.", text)
	}
	return nil
}

// engineModel describes the model for the check of a body.
func (c *call) engineModel() bodycheck.Model {
	r := c.s.cfg.Catalog().Recipes[c.model.Recipe]
	return bodycheck.Model{Fields: r.Fields, Llama: r.Family() == recipe.LlamaCpp, Sees: c.model.MMProj != ""}
}

// checkForm checks the fields and files of a form for models of audio or images.
func checkForm(body []byte, boundary string, pictures bool) error {
	form := bodycheck.Form{Pictures: pictures}
	var wrong error
	err := jsonscan.EachPart(body, boundary, func(name string, p jsonscan.Part) {
		if wrong == nil {
			wrong = form.See(name, p.Value)
		}
	})
	if err != nil {
		return api.New(api.InvalidRequest, "Invalid multipart body.").WithCause(err)
	}
	return wrong
}
