package bodycheck

import (
	"bytes"
	"strconv"

	"reveille/gateway/api"
	"reveille/gateway/media"
)

// describes checks a description of a picture. sd-server reads a tag in it as settings, which may name files and have no bounds.
func describes(name, value []byte) *api.Error {
	if bytes.Contains(value, []byte("sd_cpp_extra_args")) {
		return api.Newf(api.UnsupportedParameter, "'%s' holds settings of the engine, which are not accepted here.", name).WithParam(string(name))
	}
	return nil
}

// size checks the size of a picture to be generated.
func size(name, value []byte) *api.Error {
	if string(value) == "auto" {
		return nil
	}
	w, h, ok := bytes.Cut(value, []byte("x"))
	width, err := strconv.ParseUint(string(w), 10, 16)
	height, err2 := strconv.ParseUint(string(h), 10, 16)
	if !ok || err != nil || err2 != nil || width*height > media.MaxPixels {
		return wrong(name, "auto, or width and height as in 512x512, of at most 40 megapixels")
	}
	return nil
}
