package front

import (
	"reveille/gateway/bodycheck"
	"reveille/gateway/peek"
	"reveille/gateway/wire"
)

// vet holds a body that the gateway has written itself, or that is for an engine's own path, to the rules of what
// reaches an engine.
func (c *call) vet(spec *bodycheck.Spec) error {
	var check bodycheck.Check
	if err := check.Read(spec, c.body); err != nil {
		return invalidJSON(err)
	}
	return c.finishCheck(&check, spec)
}

// finishCheck ends the check of a body whose members were all seen.
func (c *call) finishCheck(check *bodycheck.Check, spec *bodycheck.Spec) error {
	dropped, err := check.Finish(spec, c.body, c.engine)
	if err != nil {
		return err
	}
	c.s.m.droppedFields.Add(dropped)
	c.constrained = check.Constrained
	return nil
}

// engine is what the check of a body needs to know of the model.
func (c *call) engine() bodycheck.Model {
	r := c.s.cfg.Catalog().Recipes[c.model.Recipe]
	return bodycheck.Model{Fields: r.Fields, Llama: r.Family() == "llamacpp", Sees: c.model.MMProj != ""}
}

// fileNames are the parts of forms that hold media.
var fileNames = [...]string{"file", "image", "image[]", "mask"}

// checkFiles checks the media of a form for models of sounds or pictures, and the fields that describe a picture.
func checkFiles(body []byte, boundary string, pictures bool) error {
	var files [][]byte
	var wrong error
	err := peek.EachPart(body, boundary, func(name string, p peek.Part) {
		if pictures && wrong == nil {
			wrong = bodycheck.ImageField(name, p.Value)
		}
		for _, known := range fileNames {
			if name == known {
				files = append(files, p.Value)
			}
		}
	})
	if err != nil {
		return wire.New(wire.InvalidRequest, "Invalid multipart body.").Because(err)
	}
	if wrong != nil {
		return wrong
	}
	param := "file"
	if pictures {
		param = "image"
	}
	return bodycheck.Form(param, files, pictures)
}
