package bodycheck

import (
	"bytes"
	"maps"
	"slices"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// fileFields are the fields of forms that hold files.
var fileFields = []string{"file", "image", "image[]", "mask"}

// audioFields and imageFields are the other fields of forms that reach an engine.
var (
	audioFields = plain("model", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]",
		"timestamp_granularities", "include[]", "chunking_strategy", "stream", "user")
	imageFields = func() map[string]rule {
		set := plain("strength", "partial_images", "input_fidelity")
		maps.Copy(set, Image.rules)
		return set
	}()
)

// maxField bounds a form field that is not a file, in bytes.
const maxField = 64 << 10

// Form checks a form for audio models, or for image models, and returns it without the fields that are empty or that no
// rule names; dropped counts the latter. It changes body.
func Form(body []byte, boundary string, images bool) (form []byte, dropped int, err error) {
	fields := audioFields
	if images {
		fields = imageFields
	}
	var media media
	var drop []jsonscan.Part
	scanErr := jsonscan.EachPart(body, boundary, func(name string, p jsonscan.Part) {
		r, known := fields[name]
		switch {
		case err != nil:
		case slices.Contains(fileFields, name) && images:
			if err = media.addImage(name, len(p.Value)); err == nil {
				err = media.addPixels(name, bytes.NewReader(p.Value))
			}
		case slices.Contains(fileFields, name):
			err = media.addAudio(name, len(p.Value))
		case !known:
			drop = append(drop, p)
			dropped++
		case p.Empty():
			drop = append(drop, p)
		case len(p.Value) > maxField:
			err = api.Newf(api.InvalidType, "This field may have at most %d bytes.", maxField).WithParam(name)
		case r == imagePrompt:
			err = checkImagePrompt(name, p.Value)
		}
	})
	if scanErr != nil {
		return nil, 0, api.New(api.InvalidRequest, "Invalid multipart body.").WithCause(scanErr)
	}
	if err != nil {
		return nil, 0, err
	}
	return jsonscan.NameFiles(jsonscan.RemoveParts(body, drop), boundary, fileFields), dropped, nil
}
