package main

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"strconv"
	"time"
)

// imageSide is the width and height of every picture, in pixels, whatever was asked.
const imageSide = 8

// paint is POST /v1/images/generations: one colour that depends on the prompt alone.
func (c *call) paint() {
	var q struct {
		Prompt string `json:"prompt"`
		N      *int   `json:"n"`
		Format string `json:"response_format"`
	}
	if !c.decode(&q) {
		return
	}
	if q.Prompt == "" {
		c.fail(http.StatusBadRequest, "invalid_request_error", "'prompt' is required")
		return
	}
	n := 1
	if q.N != nil {
		n = *q.N
	}
	c.pictures(q.Prompt, q.Format, n)
}

// repaint is POST /v1/images/edits and /v1/images/variations: one colour that depends on the prompt and the picture.
func (c *call) repaint() {
	form, ok := c.form()
	if !ok {
		return
	}
	defer form.RemoveAll()
	field := "image"
	if len(form.File["image[]"]) > 0 {
		field = "image[]"
	}
	picture, ok := c.file(form, field)
	if !ok {
		return
	}
	n := 1
	if text := value(form, "n"); text != "" {
		n, _ = strconv.Atoi(text)
	}
	c.pictures(value(form, "prompt")+string(picture), value(form, "response_format"), n)
}

// pictures answers with n pictures for a text.
func (c *call) pictures(text, format string, n int) {
	switch {
	case n < 1 || n > 10:
		c.fail(http.StatusBadRequest, "invalid_request_error", "'n' must be between 1 and 10")
		return
	case format != "" && format != "b64_json":
		c.fail(http.StatusBadRequest, "invalid_request_error", "response_format must be b64_json")
		return
	}
	if !c.admit(countTokens(text)) || !c.generate(n) {
		return
	}
	picture := base64.StdEncoding.EncodeToString(square(text))
	data := make([]any, n)
	for i := range data {
		data[i] = map[string]string{"b64_json": picture}
	}
	c.reply(map[string]any{"created": time.Now().Unix(), "data": data})
}

// square is a PNG of one colour.
func square(text string) []byte {
	r := source(text)
	img := image.NewPaletted(image.Rect(0, 0, imageSide, imageSide), color.Palette{
		color.RGBA{uint8(r.IntN(256)), uint8(r.IntN(256)), uint8(r.IntN(256)), 255},
	})
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic("standin: encode PNG: " + err.Error()) // memory does not fail to be written
	}
	return b.Bytes()
}
