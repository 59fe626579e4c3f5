package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
)

// transcribe is POST /v1/audio/transcriptions: the text depends on the file's bytes
// alone.
func (c *call) transcribe() {
	form, ok := c.form()
	if !ok {
		return
	}
	defer form.RemoveAll()
	media, ok := c.file(form, "file")
	if !ok {
		return
	}
	if !c.admit(len(media)/tokenBytes) || !c.generate(c.s.cfg.Tokens) {
		return
	}
	text := strings.Join(words(string(media), c.s.cfg.Tokens), "")
	switch value(form, "response_format") {
	case "", "json", "verbose_json":
		c.reply(map[string]any{"text": text})
	case "text":
		c.replyBytes("text/plain; charset=utf-8", []byte(text+"\n"))
	default:
		c.fail(http.StatusBadRequest, "invalid_request_error", "response_format must be json, verbose_json or text")
	}
}

// form reads a multipart body, or answers 400 and returns false.
func (c *call) form() (*multipart.Form, bool) {
	_, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || params["boundary"] == "" {
		c.fail(http.StatusBadRequest, "invalid_request_error", "multipart/form-data is required")
		return nil, false
	}
	form, err := multipart.NewReader(bytes.NewReader(c.body), params["boundary"]).ReadForm(maxBody)
	if err != nil {
		c.fail(http.StatusBadRequest, "invalid_request_error", "failed to parse the form: "+err.Error())
		return nil, false
	}
	return form, true
}

// file reads the first file of a form's field, or answers and returns false.
func (c *call) file(form *multipart.Form, name string) ([]byte, bool) {
	if len(form.File[name]) == 0 {
		c.fail(http.StatusBadRequest, "invalid_request_error", "no '"+name+"' field in the request")
		return nil, false
	}
	f, err := form.File[name][0].Open()
	if err == nil {
		defer f.Close()
		var data []byte
		if data, err = io.ReadAll(f); err == nil {
			return data, true
		}
	}
	c.fail(http.StatusInternalServerError, "server_error", err.Error())
	return nil, false
}

func value(form *multipart.Form, name string) string {
	if v := form.Value[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// speak is POST /v1/audio/speech: a tenth of a second of noise for each word asked for.
func (c *call) speak() {
	var q struct {
		Input  string `json:"input"`
		Format string `json:"response_format"`
	}
	if !c.decode(&q) {
		return
	}
	if q.Input == "" {
		c.fail(http.StatusBadRequest, "invalid_request_error", "'input' is required")
		return
	}
	n := len(strings.Fields(q.Input))
	if !c.admit(countTokens(q.Input)) {
		return
	}
	pcm := noise(q.Input, n*sampleRate/10)
	switch q.Format {
	case "", "wav":
		if c.generate(n) {
			c.replyBytes("audio/wav", wav(pcm))
		}
	case "pcm": // as it is made
		c.w.Header().Set("Content-Type", "audio/pcm")
		for word := range slices.Chunk(pcm, sampleRate/10*2) {
			if !c.generate(1) {
				return
			}
			_, _ = c.w.Write(word)
			_ = http.NewResponseController(c.w).Flush()
		}
	default:
		c.fail(http.StatusBadRequest, "invalid_request_error", "response_format must be wav or pcm")
	}
}

// sampleRate of generated audio, in Hz.
const sampleRate = 16000

// noise is n quiet samples of 16-bit mono PCM that depend on the text alone.
func noise(text string, n int) []byte {
	r := source(text)
	pcm := make([]byte, 0, 2*n)
	for range n {
		pcm = binary.LittleEndian.AppendUint16(pcm, uint16(r.IntN(512)))
	}
	return pcm
}

// wav puts the 44-byte RIFF header before 16-bit mono PCM.
func wav(pcm []byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("RIFF"), uint32(36+len(pcm)))
	b = le.AppendUint32(append(b, "WAVEfmt "...), 16)
	b = le.AppendUint16(b, 1) // PCM
	b = le.AppendUint16(b, 1) // one channel
	b = le.AppendUint32(b, sampleRate)
	b = le.AppendUint32(b, 2*sampleRate)
	b = le.AppendUint16(b, 2)  // bytes a sample
	b = le.AppendUint16(b, 16) // bits a sample
	b = le.AppendUint32(append(b, "data"...), uint32(len(pcm)))
	return append(b, pcm...)
}
