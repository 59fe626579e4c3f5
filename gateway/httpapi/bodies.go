package httpapi

import (
	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
)

// checkBody applies the rules for engine bodies to a body that the gateway wrote itself, or that goes to an engine's
// own path.
func (c *inferenceCall) checkBody(spec *bodycheck.Spec) error {
	if c.preset != nil { // of a body in another API's form
		if err := c.applyPreset(); err != nil {
			return err
		}
	}
	var check bodycheck.Check
	if err := check.Read(spec, c.body); err != nil {
		return api.BadJSON(err)
	}
	return c.finishCheck(&check, spec)
}

// finishCheck ends the check of a body after all its members were seen.
func (c *inferenceCall) finishCheck(check *bodycheck.Check, spec *bodycheck.Spec) error {
	body, dropped, err := check.Finish(spec, c.body, c.engineModel)
	if err != nil {
		return err
	}
	c.body = body
	c.s.m.droppedFields.Add(dropped)
	c.textBytes = check.Text
	return nil
}

// engineModel describes the model for the check of a body.
func (c *inferenceCall) engineModel() bodycheck.Model {
	r := c.s.cfg.Catalog().Recipes[c.model.Recipe]
	return bodycheck.Model{Fields: r.Fields, LlamaCpp: r.Family() == recipe.LlamaCpp, Vision: c.model.MMProj != ""}
}

// omitModel removes the model's name from the body for an engine that serves one model and does not know its name.
func (c *inferenceCall) omitModel() error {
	if c.Match.Route.Body != api.BodyJSON || !c.s.cfg.Catalog().Recipes[c.model.Recipe].OmitModel {
		return nil
	}
	body, err := jsonscan.Remove(c.body, "model")
	if err != nil {
		return api.BadJSON(err)
	}
	c.body = body
	return nil
}

// checkForm checks the fields and files of a form for models of audio or images.
func (c *inferenceCall) checkForm(boundary string, images bool) error {
	form, dropped, err := bodycheck.Form(c.body, boundary, images)
	if err != nil {
		return err
	}
	c.s.m.droppedFields.Add(dropped)
	c.body = form
	return nil
}

// engineFamily returns the kind of engine that runs the model, see [recipe.Recipe.Family].
func (c *inferenceCall) engineFamily() string {
	r := c.s.cfg.Catalog().Recipes[c.model.Recipe]
	return r.Family()
}
