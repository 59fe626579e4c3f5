package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"math"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTokensRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
		tokens := tokenize(text)
		if got := detokenize(tokens); got != text || len(tokens) != countTokens(text) {
			t.Fatalf("%q → %v (%d counted) → %q", text, tokens, countTokens(text), got)
		}
	})
}

func TestChat(t *testing.T) {
	_, url := startEngine(t, "--alias m --tokens 5")
	_, other := startEngine(t, "--tokens 5")
	type answer struct {
		Object, Model string
		Choices       []struct {
			Message      struct{ Role, Content string }
			FinishReason string `json:"finish_reason"`
		}
		Usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	ask := func(url, more string) (a answer) {
		_, _, body := post(t, url+"/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}]`+more+`}`)
		if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Choices) != 1 {
			t.Fatalf("%v: %s", err, body)
		}
		return a
	}
	a := ask(url, "")
	if a.Object != "chat.completion" || a.Model != "m" || a.Choices[0].Message.Role != "assistant" ||
		a.Choices[0].FinishReason != "stop" || a.Usage.Completion != 5 || a.Usage.Prompt == 0 {
		t.Errorf("%+v", a)
	}
	if b := ask(other, ""); b.Choices[0].Message != a.Choices[0].Message {
		t.Errorf("another process says %q, this one %q", b.Choices[0].Message.Content, a.Choices[0].Message.Content)
	}
	short := ask(url, `,"max_tokens":2`)
	if short.Choices[0].FinishReason != "length" || !strings.HasPrefix(a.Choices[0].Message.Content, short.Choices[0].Message.Content) {
		t.Errorf("max_tokens: %+v", short)
	}
}

func TestChatStream(t *testing.T) {
	_, url := startEngine(t, "--tokens 4")
	const ask = `"messages":[{"role":"user","content":"hello"}]`
	_, kind, body := post(t, url+"/v1/chat/completions", `{`+ask+`,"stream":true,"stream_options":{"include_usage":true}}`)
	if kind != "text/event-stream" {
		t.Errorf("content type %q", kind)
	}
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	if len(events) != 1+4+1+1+1 || events[len(events)-1] != "data: [DONE]" {
		t.Fatalf("%d events:\n%s", len(events), body)
	}
	var text string
	for i, e := range events[:len(events)-1] {
		var chunk struct {
			Choices []struct {
				Delta struct {
					Role    string
					Content *string
				}
				FinishReason *string `json:"finish_reason"`
			}
			Usage *struct{}
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &chunk); err != nil {
			t.Fatalf("%v: %s", err, e)
		}
		if last := i == len(events)-2; last {
			if len(chunk.Choices) != 0 || chunk.Usage == nil {
				t.Errorf("usage event: %s", e)
			}
			continue
		}
		c := chunk.Choices[0]
		if (i == 0) != (c.Delta.Role == "assistant") || (i == 5) != (c.FinishReason != nil) {
			t.Errorf("event %d: %s", i, e)
		}
		if c.Delta.Content != nil {
			text += *c.Delta.Content
		}
	}
	if _, _, plain := post(t, url+"/v1/chat/completions", `{`+ask+`}`); text == "" || !strings.Contains(plain, text) {
		t.Errorf("streamed %q, plain %s", text, plain)
	}
	_, _, body = post(t, url+"/completions", `{"prompt":"a","stream":true,"max_tokens":1}`)
	if n := strings.Count(body, "data: "); n != 3 || !strings.Contains(body, "text_completion") || strings.Contains(body, "usage") {
		t.Errorf("completion stream:\n%s", body)
	}
}

func TestEmbeddings(t *testing.T) {
	s, url := startEngine(t, "")
	embed := func(body string) (vecs [][]float32) {
		t.Helper()
		_, _, text := post(t, url+"/v1/embeddings", body)
		var a struct {
			Data []struct {
				Index     int
				Embedding json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for i, d := range a.Data {
			var v []float32
			var packed string
			if json.Unmarshal(d.Embedding, &packed) == nil {
				raw, err := base64.StdEncoding.DecodeString(packed)
				if err != nil || len(raw) != 4*dimensions {
					t.Fatalf("base64: %v, %d bytes", err, len(raw))
				}
				for k := range dimensions {
					b := raw[4*k:]
					v = append(v, math.Float32frombits(uint32(b[0])|uint32(b[1])<<8|uint32(b[2])<<16|uint32(b[3])<<24))
				}
			} else if err := json.Unmarshal(d.Embedding, &v); err != nil {
				t.Fatal(err)
			}
			if d.Index != i || len(v) != dimensions {
				t.Fatalf("item %d: index %d, %d dimensions", i, d.Index, len(v))
			}
			vecs = append(vecs, v)
		}
		return vecs
	}
	tokens, _ := json.Marshal(tokenize("cat"))
	one := embed(`{"input":"cat"}`)[0]
	for _, body := range []string{
		`{"input":["cat"]}`, `{"input":` + string(tokens) + `}`, `{"input":[` + string(tokens) + `]}`,
		`{"input":"cat","encoding_format":"base64"}`, `{"input":["cat","dog",""]}`,
	} {
		if got := embed(body)[0]; !slices.Equal(got, one) {
			t.Errorf("%s: %v, want %v", body, got, one)
		}
	}
	norm := 0.0
	for _, x := range one {
		norm += float64(x) * float64(x)
	}
	if math.Abs(norm-1) > 1e-5 || slices.Equal(one, embed(`{"input":"dog"}`)[0]) {
		t.Errorf("norm² %v", norm)
	}
	if st := s.stats.snapshot(); st.BatchSizes[3] != 1 || st.Inputs != 9 {
		t.Errorf("stats: %+v", st)
	}
}

func TestRerank(t *testing.T) {
	_, url := startEngine(t, "")
	_, _, body := post(t, url+"/v1/rerank", `{"query":"Red cat","documents":["tax report",{"text":"a red cat"},"a cat"],"top_n":2}`)
	if !strings.Contains(body, `"results":[{"index":1,"relevance_score":1},{"index":2,"relevance_score":0.5}]`) {
		t.Error(body)
	}
}

func TestAudio(t *testing.T) {
	_, url := startEngine(t, "")
	transcribe := func(media, format string) string {
		var b bytes.Buffer
		form := multipart.NewWriter(&b)
		f, _ := form.CreateFormFile("file", "a.wav")
		_, _ = f.Write([]byte(media))
		_ = form.WriteField("response_format", format)
		form.Close()
		resp, err := http.Post(url+"/v1/audio/transcriptions", form.FormDataContentType(), &b)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out bytes.Buffer
		_, _ = out.ReadFrom(resp.Body)
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, out.String())
		}
		return out.String()
	}
	plain := strings.TrimSpace(transcribe("sound", "text"))
	if whole := transcribe("sound", "json"); plain == "" || whole != `{"text":"`+plain+`"}` {
		t.Errorf("json %s, text %q", whole, plain)
	}
	if plain == strings.TrimSpace(transcribe("noise", "text")) {
		t.Error("other bytes, same text")
	}
	_, kind, sound := post(t, url+"/v1/audio/speech", `{"input":"two words"}`)
	if kind != "audio/wav" || !strings.HasPrefix(sound, "RIFF") || len(sound) != 44+2*2*sampleRate/10 {
		t.Errorf("%s, %d bytes", kind, len(sound))
	}
}

func TestImage(t *testing.T) {
	_, url := startEngine(t, "")
	_, _, body := post(t, url+"/v1/images/generations", `{"prompt":"sun","n":2}`)
	var a struct {
		Data []struct {
			B64 string `json:"b64_json"`
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Data) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	raw, err := base64.StdEncoding.DecodeString(a.Data[1].B64)
	if err != nil {
		t.Fatal(err)
	}
	if img, err := png.Decode(bytes.NewReader(raw)); err != nil || img.Bounds().Dx() != imageSide {
		t.Errorf("%v", err)
	}
}

func TestSideRoutes(t *testing.T) {
	_, url := startEngine(t, "--alias m --ctx-size 77")
	_, _, body := post(t, url+"/tokenize", `{"content":"hello"}`)
	_, _, back := post(t, url+"/detokenize", body)
	if back != `{"content":"hello"}` {
		t.Errorf("%s → %s", body, back)
	}
	var props map[string]any
	get(t, url+"/props", &props)
	if props["model_alias"] != "m" {
		t.Errorf("props: %v", props)
	}
	var slots []struct {
		Ctx int `json:"n_ctx"`
	}
	get(t, url+"/slots", &slots)
	if len(slots) != 1 || slots[0].Ctx != 77 {
		t.Errorf("slots: %v", slots)
	}
}

// A message dictates an answer or a call, which ends with the tool's result; without that tool it means nothing.
func TestDictated(t *testing.T) {
	_, url := startEngine(t, "--tokens 5")
	const call, tool, result = `"<<call write {\"path\":\"a\",\"n\":{}}>>"`, `{"type":"function","function":{"name":"write"}}`, `{"role":"tool","tool_call_id":"call_standin","content":"ok"}`
	for name, c := range map[string]struct{ path, body, want string }{
		"say":         {"chat/completions", `{"messages":[{"role":"user","content":"Do. <<say a\nb>> Now."}]}`, `"content":"a\nb"`},
		"parts":       {"chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"<<say it>>"}]}]}`, `"content":"it"`},
		"call":        {"chat/completions", `{"messages":[{"role":"user","content":` + call + `}],"tools":[` + tool + `]}`, `"function":{"arguments":"{\"path\":\"a\",\"n\":{}}","name":"write"}`},
		"stream":      {"chat/completions", `{"stream":true,"messages":[{"role":"user","content":` + call + `}],"tools":[` + tool + `]}`, `"finish_reason":"tool_calls"`},
		"result":      {"chat/completions", `{"messages":[{"role":"user","content":` + call + `},` + result + `],"tools":[` + tool + `]}`, `"content":"Done."`},
		"not offered": {"chat/completions", `{"messages":[{"role":"user","content":` + call + `}]}`, `"completion_tokens":5`},
		"assistant's": {"chat/completions", `{"messages":[{"role":"assistant","content":"<<say it>>"}]}`, `"completion_tokens":5`},
		"messages":    {"messages", `{"messages":[{"role":"user","content":"<<say it>>"}]}`, `"content":[{"text":"it","type":"text"}]`},
		"tool_use":    {"messages", `{"messages":[{"role":"user","content":` + call + `}],"tools":[{"name":"write"}]}`, `{"id":"toolu_standin","input":{"path":"a","n":{}},"name":"write","type":"tool_use"}`},
		"events":      {"messages", `{"stream":true,"messages":[{"role":"user","content":` + call + `}],"tools":[{"name":"write"}]}`, "event: content_block_delta\ndata: " + `{"delta":{"partial_json":"{\"path\"`},
		"tool_result": {"messages", `{"messages":[{"role":"user","content":` + call + `},{"role":"user","content":[{"type":"tool_result"}]}],"tools":[{"name":"write"}]}`, `"text":"Done."`},
		"words":       {"messages", `{"max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, `"stop_reason":"max_tokens"`},
		"count":       {"messages/count_tokens", `{"messages":[]}`, `{"input_tokens":`},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _, body := post(t, url+"/v1/"+c.path, c.body); status != http.StatusOK || !strings.Contains(body, c.want) {
				t.Errorf("%d %s\nwant %s", status, body, c.want)
			}
		})
	}
}
