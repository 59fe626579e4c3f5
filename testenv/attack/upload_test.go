package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestUploads sends forms as clients write them through gateway and runner: any order of fields, any boundary, any size.
func TestUploads(t *testing.T) {
	models := calls.Catalogue{"ears": "audio"}.YAML(calls.LocalHost)
	s := testenv.Start(t, testenv.Spec{Models: strings.Replace(models, "recipe: standin", "recipe: standin, aliases: [whisper-1]", 1)})
	const (
		hex    = "5f8d3a0b9c2e47d1a6b3c4d5e6f70812"
		webkit = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
		gecko  = "----geckoformboundaryb8ac7f9c9d3e5f1a2b4c6d8e0f1a2b3c"
	)
	field := func(name, value string) string {
		return "Content-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value
	}
	aio := func(name, value string) string {
		return "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value
	}
	file := func(disposition, kind, bytes string) string {
		return "Content-Disposition: form-data; name=\"file\"; " + disposition + "\r\nContent-Type: " + kind + "\r\n\r\n" + bytes
	}
	wav, _ := testenv.Sound(1, 1)
	long, _ := testenv.Sound(1, 20<<20/(2*testenv.SampleRate))
	const misleading = "\r\n--not the end\r\n\x00\xff"
	sound, big := string(wav)+misleading, string(long)+misleading
	var plain string // what the engine makes of sound
	for _, c := range []struct {
		name, boundary string
		quoted         bool
		chunked        bool
		parts          []string
		big            bool
	}{
		{"openai-python", hex, false, false, []string{field("model", "ears"), field("response_format", "json"), file(`filename="a.wav"`, "audio/wav", sound)}, false},
		{"by an alias", hex, false, false, []string{field("model", "whisper-1"), file(`filename="a.wav"`, "audio/wav", sound)}, false},
		{"aiohttp, file first", hex, false, false, []string{file(`filename="a.wav"; filename*=utf-8''a%C3%BC.wav`, "application/octet-stream", sound), aio("model", "ears")}, false},
		{"aiohttp, chunked", hex, false, true, []string{aio("model", "ears"), file(`filename="a.wav"`, "audio/wav", sound)}, false},
		{"Chrome", webkit, false, false, []string{file(`filename="my %22sound%22.wav"`, "audio/wav", sound), field("model", "ears"), field("language", "en")}, false},
		{"Firefox, boundary in quotes", gecko, true, false, []string{field("language", "en"), field("model", "ears"), file(`filename="a.wav"`, "audio/x-wav", sound)}, false},
		{"20 MiB, file first", webkit, false, false, []string{file(`filename="a.wav"`, "audio/wav", big), field("model", "ears")}, true},
		{"20 MiB, chunked, model first", hex, false, true, []string{field("model", "ears"), file(`filename="a.wav"`, "audio/wav", big)}, true},
	} {
		var body bytes.Buffer
		for _, p := range c.parts {
			fmt.Fprintf(&body, "--%s\r\n%s\r\n", c.boundary, p)
		}
		fmt.Fprintf(&body, "--%s--\r\n", c.boundary)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		var from io.Reader = &body
		if c.chunked {
			from = io.MultiReader(&body) // a length that net/http does not know
		}
		req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/audio/transcriptions", from)
		if err != nil {
			t.Fatal(err)
		}
		boundary := c.boundary
		if c.quoted {
			boundary = `"` + boundary + `"`
		}
		req.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		a := calls.Do(calls.Client(t, 1), req, nil)
		cancel()
		if plain == "" {
			plain = string(a.Body)
		}
		// The stand-in's text depends on the file's bytes alone.
		if !a.OK() || !strings.HasPrefix(string(a.Body), `{"text":"`) || c.big == (string(a.Body) == plain) {
			t.Errorf("%s: %v %s", c.name, a, a.Body)
		}
	}
	for _, f := range [][2]string{{"temperature", ""}, {"temperature_inc", "1e-9"}, {"vad_filter", "true"}, {"", "x"}} { // left out
		body := ""
		for _, part := range []string{field(f[0], f[1]), field("model", "ears"), file(`filename="a.wav"`, "audio/wav", sound)} {
			body += "--" + hex + "\r\n" + part + "\r\n"
		}
		a := call(t, "POST", s.URL+"/v1/audio/transcriptions", body+"--"+hex+"--\r\n", "Content-Type: multipart/form-data; boundary="+hex)
		if !a.OK() || string(a.Body) != plain {
			t.Errorf("%s %s: %v %s", f[0], f[1], a, a.Body)
		}
	}
}

// TestImageSettings: settings of sd-server hidden in a description reach no engine, in a JSON body, in a form or through
// /upstream.
func TestImageSettings(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"art": "image"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	tag := `<sd_cpp_extra_args>{"lora":[{"path":"/etc/passwd"}]}</sd_cpp_extra_args>`
	prompt := "a cat " + tag
	body, err := json.Marshal(map[string]string{"model": "art", "prompt": prompt})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/images/generations", "/upstream/art/v1/images/generations"} {
		refused(t, path, call(t, "POST", s.URL+path, string(body), bearer(ownerKey)), 400)
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("image", "a.png")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(png.Encode(file, image.NewGray(image.Rect(0, 0, 9, 9))), w.WriteField("model", "art"), w.WriteField("prompt", prompt), w.Close()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/images/edits", "/upstream/art/v1/images/edits"} {
		refused(t, path, call(t, "POST", s.URL+path, form.String(), bearer(ownerKey), "Content-Type: "+w.FormDataContentType()), 400)
	}
	if a := call(t, "POST", s.URL+"/v1/images/generations", `{"model":"art","prompt":"a cat","size":"64x64"}`, bearer(inferKey)); !a.OK() {
		t.Errorf("an honest description: %v", a)
	}
}
