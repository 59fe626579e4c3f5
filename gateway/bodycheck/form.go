package bodycheck

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"reveille/gateway/api"
	"reveille/gateway/media"
)

// fileFields are the fields of forms that hold files.
var fileFields = []string{"file", "image", "image[]", "mask"}

// soundFields and pictureFields are the other fields of forms. whisper.cpp takes more, some without bounds: with a small
// temperature_inc it never stops collecting temperatures.
var (
	soundFields = map[string]rule{
		"model": {kind: text}, "language": {kind: text}, "prompt": {kind: text}, "response_format": {kind: text}, "temperature": between(0, 2),
		"timestamp_granularities[]": {kind: text}, "timestamp_granularities": {kind: text}, "include[]": {kind: text}, "chunking_strategy": {kind: text},
		"stream": {kind: boolean}, "user": {kind: text},
	}
	pictureFields = func() map[string]rule {
		all := maps.Clone(specs["image_generations"].rules)
		all["strength"], all["partial_images"], all["input_fidelity"] = between(0, 1), between(0, 3), rule{kind: text}
		return all
	}()
)

// Form checks a form for audio models, or for image models, field by field.
type Form struct {
	Pictures bool

	media media.Check
}

// See checks a field; name is "" if it has none.
func (f *Form) See(name string, value []byte) error {
	if slices.Contains(fileFields, name) {
		return f.file(value)
	}
	fields := soundFields
	if f.Pictures {
		fields = pictureFields
	}
	if name == "" {
		return api.New(api.InvalidRequest, "A part of the form has no name, or more than one.").WithParam("form")
	}
	r, known := fields[name]
	if !known {
		return api.Newf(api.UnsupportedParameter, "This route takes no form field %.64q.", name).WithParam(strings.ToValidUTF8(name[:min(len(name), 64)], ""))
	}
	if e := r.checkText([]byte(name), value); e != nil {
		return e
	}
	return nil
}

// file checks a file: a picture or a sound.
func (f *Form) file(value []byte) error {
	e := (*api.Error)(nil)
	if f.Pictures {
		e = f.media.PictureFile("image", bytes.NewReader(value), len(value))
	} else {
		e = f.media.Upload("file", bytes.NewReader(value), len(value))
	}
	if e != nil {
		return e
	}
	return nil
}

// checkText is check for a field of a form, whose value is a text.
func (r rule) checkText(name, value []byte) *api.Error {
	if len(value) > smallBytes {
		return api.Newf(api.InvalidType, "This field may have at most %d bytes.", smallBytes).WithParam(string(name))
	}
	var texts run
	if e := texts.add(string(name), value); e != nil {
		return e
	}
	switch r.kind {
	case number:
		n, err := strconv.ParseFloat(string(value), 64)
		if err != nil || bytes.ContainsAny(value, "xX_") || // engines parse such numbers differently, or only up to there
			!(n >= r.low && n <= r.high) { // NaN is in no range
			return r.outside(name)
		}
	case boolean:
		if _, err := strconv.ParseBool(string(value)); err != nil {
			return wrong(name, "true or false")
		}
	case imageSize:
		return size(name, value)
	case imageText:
		return describes(name, value)
	}
	return nil
}
