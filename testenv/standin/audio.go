package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
)

// transcribe is POST /v1/audio/transcriptions: the text depends on the file's bytes
// alone.
func (c *call) transcribe() {
	_, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || params["boundary"] == "" {
		c.fail(http.StatusBadRequest, "invalid_request_error", "multipart/form-data is required")
		return
	}
	form, err := multipart.NewReader(bytes.NewReader(c.body), params["boundary"]).ReadForm(maxBody)
	if err != nil {
		c.fail(http.StatusBadRequest, "invalid_request_error", "failed to parse the form: "+err.Error())
		return
	}
	defer form.RemoveAll()
	if len(form.File["file"]) == 0 {
		c.fail(http.StatusBadRequest, "invalid_request_error", "no 'file' field in the request")
		return
	}
	f, err := form.File["file"][0].Open()
	if err != nil {
		c.fail(http.StatusInternalServerError, "server_error", err.Error())
		return
	}
	defer f.Close()
	media, err := io.ReadAll(f)
	if err != nil {
		c.fail(http.StatusInternalServerError, "server_error", err.Error())
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
	if !c.admit(countTokens(q.Input)) || !c.generate(n) {
		return
	}
	pcm := noise(q.Input, n*sampleRate/10)
	switch q.Format {
	case "", "wav":
		c.replyBytes("audio/wav", wav(pcm))
	case "pcm":
		c.replyBytes("audio/pcm", pcm)
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
