package main

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"net/http"
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
	n := 1
	if q.N != nil {
		n = *q.N
	}
	switch {
	case q.Prompt == "":
		c.fail(http.StatusBadRequest, "invalid_request_error", "'prompt' is required")
		return
	case n < 1 || n > 10:
		c.fail(http.StatusBadRequest, "invalid_request_error", "'n' must be between 1 and 10")
		return
	case q.Format != "" && q.Format != "b64_json":
		c.fail(http.StatusBadRequest, "invalid_request_error", "response_format must be b64_json")
		return
	}
	if !c.admit(countTokens(q.Prompt)) || !c.generate(n) {
		return
	}
	picture := base64.StdEncoding.EncodeToString(square(q.Prompt))
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
