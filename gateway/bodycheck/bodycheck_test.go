package bodycheck

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/gateway/media"
	"reveille/infra/jsonscan"
	"reveille/testenv/mediafile"
)

var llama = Model{Llama: true}

// check is the check of a body on a route; body is changed as for an engine.
func check(route string, body []byte, m Model) (c Check, dropped int, err error) {
	if err = c.Read(ForRoute(route), body); err != nil {
		return c, 0, err
	}
	dropped, err = c.Finish(ForRoute(route), body, func() Model { return m })
	return c, dropped, err
}

// code is the code of an error for the client, "" for none.
func code(err error) string {
	var e *api.Error
	if errors.As(err, &e) {
		if e.Status != 400 || e.Param == "" {
			return fmt.Sprintf("%s with status %d and param %q", e.Code, e.Status, e.Param)
		}
		return e.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// picture is a black PNG file in base64; a large one has no pixels.
func picture(width, height uint32) string {
	var pixels []byte
	if width*height < 1_000_000 {
		pixels = make([]byte, (3*width+1)*height)
	}
	return b64(mediafile.PNG(width, height, 8, 2, 0, pixels))
}

// sound is the beginning of a WAV file.
func sound(rate uint32, seconds int) []byte {
	h := []byte("RIFF\xff\xff\xff\xffWAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00")
	h = binary.LittleEndian.AppendUint32(h, rate)
	h = binary.LittleEndian.AppendUint32(h, rate)
	h = append(h, 1, 0, 8, 0)
	h = append(h, "data\xff\xff\xff\xff"...)
	return append(h, make([]byte, int(rate)*seconds)...)
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func TestParts(t *testing.T) {
	png := "data:image/png;base64," + picture(10, 10)
	image := func(url string) string { return `{"type":"image_url","image_url":{"url":"` + url + `"}}` }
	wav := b64(sound(8000, 1))
	const refusal, remote = "unsupported_parameter", "remote_media_disabled"
	chat := map[string]string{
		`{"type":"text","text":"see https://a.test"}`: "",
		image(png): "",
		image(strings.ReplaceAll(png, "/", `\/`)):                                                                       "",
		`{"type":"image_url","image_url":"` + png + `"}`:                                                                refusal, // llama-server takes it for base64
		`{"image_url":{"detail":"low","url":"` + png + `"},"type":"image_url"}`:                                         "",
		`{"type":"input_audio","input_audio":{"data":"` + wav + `","format":"wav"}}`:                                    "",
		`{"type":"input_audio","input_audio":{"data":"data:audio/wav;base64,` + wav + `","format":"wav"}}`:              "",
		image("https://a.test/x.png"):                                                                                   remote,
		image("HTTP://a.test/x.png"):                                                                                    remote,
		image("file:///etc/passwd"):                                                                                     remote,
		image("data:text/html;base64,AAAA"):                                                                             refusal,
		image("data:image/png,AAAA"):                                                                                    refusal,
		`{"type":"image_url","image_url":"http://a"}`:                                                                   remote,
		`{"type":"image_url","image\u005furl":{"\u0075rl":"http://a"}}`:                                                 remote,
		`{"type":"image_url","image_url":{"url":"` + png + `","url":"http://a"}}`:                                       remote,
		`{"type":"image_url","image_url":{"url":"` + png + `"},"image_url":{"url":"http://a"}}`:                         refusal,
		`{"type":"text","type":"image_url","text":"x","image_url":{"url":"http://a"}}`:                                  refusal,
		`{"type":"text","text":"x","image_url":{"url":"http://a"}}`:                                                     refusal,
		`{"type":"image_url","image_url":[{"url":"http://a"}]}`:                                                         refusal,
		`{"type":"image_url","image_url":{"url":{"url":"http://a"}}}`:                                                   refusal,
		`{"type":"image_url","image_url":null}`:                                                                         refusal,
		`{"type":"image_url"}`:                                                                                          "missing_required_parameter",
		`{"type":["image_url"],"image_url":{"url":"http://a"}}`:                                                         refusal,
		`{"image_url":{"url":"http://a"}}`:                                                                              refusal,
		`{"type":"input_video","input_video":{"url":"http://a"}}`:                                                       refusal,
		`{"type":"input_video","input_video":{"data":"http://a"}}`:                                                      refusal,
		`{"type":"input_audio","input_audio":{"data":"http://a/x.wav"}}`:                                                refusal,
		`{"type":"input_audio","input_audio":{"data":"httpAAAA"}}`:                                                      "invalid_type",
		`{"type":"input_audio","input_audio":{"data":"\u0068ttp:\/\/a"}}`:                                               refusal,
		`{"type":"input_audio","input_audio":{"data":"` + wav + `","url":"http://a"}}`:                                  refusal,
		`{"type":"input_audio","input_audio":"http://a"}`:                                                               "invalid_type",
		`{"type":"audio_url","audio_url":{"url":"http://a"}}`:                                                           refusal,
		`{"type":"video_url","video_url":{"url":"http://a"}}`:                                                           refusal,
		`{"type":"image","image":"http://a"}`:                                                                           refusal,
		`{"type":"file","file":{"file_data":"http://a"}}`:                                                               refusal,
		`{"type":"media_marker","text":"x"}`:                                                                            refusal,
		`"http://a"`:                                                                                                    "invalid_type",
		`[{"type":"image_url","image_url":{"url":"http://a"}}]`:                                                         "invalid_type",
		image("data:image/png;base64," + picture(14000, 14000)):                                                         "invalid_type",
		image("data:image/png;base64," + picture(1<<31-1, 1<<31-1)):                                                     "invalid_type",
		image("data:image/png;base64," + b64([]byte("no picture at all"))):                                              "invalid_type",
		image(png) + strings.Repeat(","+image(png), 7):                                                                  "",
		image(png) + strings.Repeat(","+image(png), 8):                                                                  "invalid_type",
		strings.TrimSuffix(strings.Repeat(image("data:image/png;base64,"+picture(6000, 6000))+",", 2), ","):             "invalid_type",
		image(png + strings.Repeat("A", 28_000_000)):                                                                    "invalid_type",
		`{"type":"input_audio","input_audio":{"data":"` + b64(sound(1, 1)) + `","format":"wav"}}`:                       "invalid_type",
		`{"type":"input_audio","input_audio":{"data":"` + b64([]byte("fLaC"+strings.Repeat("\x00", 60))) + `"}}`:        "invalid_type",
		`{"type":"input_audio","input_audio":{"data":"` + b64([]byte("ID3"+strings.Repeat("\x00", 11_000_000))) + `"}}`: "invalid_type",
	}
	for part, want := range chat {
		_, _, err := check("chat", []byte(`{"messages":[{"role":"user","content":[`+part+`]}]}`), llama)
		if got := code(err); got != want {
			t.Errorf("%.150s: %q, want %q", part, got, want)
		}
	}
	for _, tt := range []struct{ route, body, want string }{
		{"chat", `{"messages":[{"role":"user","content":"x","image_url":"http://a"}]}`, refusal},
		{"chat", `{"messages":[{"role":"user","content":"x"},{"content":{"url":"http://a"}}]}`, "invalid_type"},
		{"chat", `{"messages":[{"content":"x","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, remote},
		{"chat", `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}],"content":"x"}]}`, remote},
		{"chat", `{"messages":[{"content":"x"}],"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, remote},
		{"chat", `{"messages":[{"content":"x"}],"m\u0065ssages":[{"content":[{"type":"video_url"}]}]}`, refusal},
		{"chat", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"url\":\"https://a\"}"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + picture(9, 9) + `"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://a"}}]}]}`, remote},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"https://a"}}]}]}`, refusal},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"data:text/html;base64,` + picture(9, 9) + `"}}]}]}`, refusal},
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"see https://a"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"http://a"}}]}]}]}`, remote},
		{"messages", `{"messages":[{"content":[{"type":"tool_use","id":"t","name":"f","input":{"url":"https://a","image_url":"https://b"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, refusal},
		{"messages", `{"system":[{"type":"image","source":{"type":"url","url":"http://a"}}],"messages":[{}]}`, refusal},
		{"completions", `{"prompt":[{"prompt_string":"x","multimodal_data":["http://a"]}]}`, refusal},
		{"embeddings", `{"input":[{"type":"image_url","image_url":{"url":"http://a"}}]}`, refusal},
		{"embeddings", `{"input":[[1,2],[3]]}`, ""},
		{"tokenize", `{"content":[{"url":"http://a"}]}`, refusal},
		{"chat", `{"messages":[{"tool_calls":[` + strings.Repeat("{},", maxCalls-1) + `{}]}]}`, ""},
		{"chat", `{"messages":[{"tool_calls":[` + strings.Repeat("{},", maxCalls-1) + `{}]},{"tool_calls":[{}]}]}`, "invalid_type"},
		{"chat", `{"messages":[` + strings.Repeat("{},", maxMessages-1) + `{}]}`, ""},
		{"chat", `{"messages":[` + strings.Repeat("{},", maxMessages) + `{}]}`, "invalid_type"},
		{"messages", `{"messages":[{"content":[` + strings.Repeat(`{"type":"tool_use","input":{}},`, maxCalls-1) + `{"type":"tool_use","input":{}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[` + strings.Repeat(`{"type":"tool_use","input":{}},`, maxCalls) + `{"type":"tool_use","input":{}}]}]}`, "invalid_type"},
		{"messages", `{"messages":[{"content":[` + strings.Repeat(`{"type":"tool_result","content":""},`, maxMessages-1) + `{"type":"tool_result","content":""}]}]}`, "invalid_type"},
		{"messages", `{"messages":[{"content":[` + strings.Repeat(`{"type":"tool_result","content":""},`, maxMessages-2) + `{"type":"tool_result","content":""}]}]}`, ""},
	} {
		_, _, err := check(tt.route, []byte(tt.body), llama)
		if got := code(err); got != tt.want {
			t.Errorf("%s %.150s: %q, want %q", tt.route, tt.body, got, tt.want)
		}
	}
}

func TestFields(t *testing.T) {
	for _, tt := range []struct{ route, body, left, want string }{
		{"chat", `{"messages":[{}],"temperature":0.5,"zz":1}`, `{"messages":[{}],"temperature":0.5}`, ""},
		{"chat", `{"zz":{"a":[1]},"y":2, "messages":[{}]}`, `{"messages":[{}]}`, ""},
		{"chat", `{"messages":[{}],"top_k":null,"stop":["a","b"],"logprobs":true,"top_logprobs":20}`, `{"messages":[{}],"top_k":null,"stop":["a","b"],"logprobs":true,"top_logprobs":20}`, ""},
		{"chat", `{"messages":[{}],"id_slot":0}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{}],"samplers":["top_k","temperature"]}`, `{"messages":[{}],"samplers":["top_k","temperature"]}`, ""},
		{"chat", `{"messages":[{}],"samplers":"dkypmxt"}`, `{"messages":[{}],"samplers":"dkypmxt"}`, ""},
		{"chat", `{"messages":[{}],"samplers":["dry","dry"]}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"samplers":"ee"}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"samplers":"e\u0065"}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"samplers":"` + "abcdefghijklmnopqrstuvwxyz" + `"}`, "", "invalid_type"},
		{"completions", `{"prompt":["a","b"],"stop":["x"]}`, `{"prompt":["a","b"],"stop":["x"]}`, ""},
		{"completions", `{"prompt":[` + strings.Repeat(`"a",`, 128) + `"a"]}`, "", "invalid_type"},
		{"completions", `{"prompt":[""],"n":4}`, "", "invalid_type"},
		{"completions", `{"prompt":["a",""]}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"add_generation_prompt":false,"n":2}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{}],"add_generation_prompt":false,"n_cmpl":2}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{"role":"assistant","content":""}],"n":2}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{"role":"user","content":""}],"chat_template_kwargs":{"add_generation_prompt":false},"n":2}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{}],"add_generation_prompt":false,"n":1}`, `{"messages":[{}],"add_generation_prompt":false,"n":1}`, ""},
		{"completions", `{"prompt":[` + strings.Repeat(`1,`, 1000) + `"a"]}`, `{"prompt":[` + strings.Repeat(`1,`, 1000) + `"a"]}`, ""},
		{"completions", `{"prompt":[` + strings.Repeat(`[1],`, 50) + `"a"],"suffix":"` + strings.Repeat("s", 40_000) + `"}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"cache_prompt":true}`, `{"messages":[{}]}`, ""},
		{"chat", `{"messages":[{}],"cache_prompt":false}`, `{"messages":[{}],"cache_prompt":false}`, ""},
		{"chat", `{"messages":[{}],"id_slot":null,"n_discard":5}`, `{"messages":[{}],"n_discard":5}`, ""},
		{"chat", `{"messages":[{}],"n_discard":-1}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{}],"lora":[{"id":0}]}`, "", "unsupported_parameter"},
		{"completions", `{"prompt":"x","chat_parser":"{}"}`, "", "unsupported_parameter"},
		{"completions", `{"prompt":"x","chat\u005fparser":"{}"}`, "", "unsupported_parameter"},
		{"completions", `{"prompt":"x","grammar_triggers":[]}`, "", "unsupported_parameter"},
		{"completions", `{"prompt":"x","n_probs":21}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","n_probs":1e9,"n_probs":1}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","logprobs":21}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","n":17}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","best_of":99999}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","dry_penalty_last_n":2147483647}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","repeat_last_n":2147483647}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","max_tokens":99999999999}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","temperature":"hot"}`, "", "invalid_type"},
		{"completions", `{"prompt":"x","stop":[["a"]]}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"tools":"x"}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"stop":["a",5]}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"json_schema":true}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"chat_template_kwargs":{"enable_thinking":"zz"}}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"chat_template_kwargs":{"messages":[{"role":"user"}]}}`, "", "unsupported_parameter"},
		{"messages", `{"messages":[{}],"chat_template_kwargs":{"x":1,"t\u006fols":[{}]}}`, "", "unsupported_parameter"},
		{"chat", `{"messages":[{}],"chat_template_kwargs":{"enable_thinking":true,"x":[1]}}`, `{"messages":[{}],"chat_template_kwargs":{"enable_thinking":true,"x":[1]}}`, ""},
		{"chat", `{"messages":[{}],"stream_options":{"include_usage":1}}`, "", "invalid_type"},
		{"chat", `{"messages":[{}],"dry_sequence_breakers":[]}`, "", "invalid_type"},
		{"messages", `{"messages":[{}],"system":[5]}`, "", "invalid_type"},
		{"rerank", `{"query":"x","documents":["a",{"text":"b","title":"c"}],"rank_fields":["d"]}`, `{"query":"x","documents":["a",{"text":"b","title":"c"}]}`, ""},
		{"rerank", `{"query":"x","documents":[{"image_url":"http://a"}]}`, "", "invalid_type"},
		{"rerank", `{"query":"x","documents":[["a"]]}`, "", "invalid_type"},
		{"rerank", `{"query":"` + strings.Repeat("a ", 4<<10) + `","documents":["` + strings.Repeat(`","`, 1000) + `"]}`, "", "invalid_type"},
		{"rerank", `{"documents":["` + strings.Repeat("a ", 3<<20) + `"],"query":"a"}`, "", "invalid_type"},
		{"rerank", `{"query":"x","documents":[{"text":["a"]}]}`, "", "invalid_type"},
		{"rerank", `{"query":"` + strings.Repeat("{document}", 100) + `","documents":["` + strings.Repeat("a ", 30_000) + `"]}`, "", "invalid_type"},
		{"rerank", `{"query":"` + strings.Repeat(`{d\u006fcument}`, 100) + `","documents":["` + strings.Repeat("a ", 30_000) + `"]}`, "", "invalid_type"},
		{"rerank", `{"query":"{document}?","documents":["a"]}`, `{"query":"{document}?","documents":["a"]}`, ""},
		{"ollama_chat", `{"messages":[],"id_slot":1}`, "", "unsupported_parameter"},
		{"ollama_chat", `{"messages":[],"keep_alive":1,"zz":2}`, `{"messages":[],"keep_alive":1,"zz":2}`, ""},
	} {
		body := []byte(tt.body)
		_, _, err := check(tt.route, body, Model{})
		if got := code(err); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.route, tt.body, got, tt.want)
		} else if tt.want == "" && string(compact(t, body)) != tt.left {
			t.Errorf("%s %s: left %s, want %s", tt.route, tt.body, body, tt.left)
		}
	}
	for value, want := range map[string]string{`[1,2]`: "", `[-1]`: "invalid_type", `5`: "invalid_type", `[[1]]`: "invalid_type"} {
		if _, _, err := check("completions", []byte(`{"prompt":"x","stop_token_ids":`+value+`}`), Model{Fields: []string{"stop_token_ids"}}); code(err) != want {
			t.Errorf("stop_token_ids %s: %v", value, err)
		}
	}
	body := []byte(`{"prompt":"x","min_tokens":3,"zz":1}`)
	if _, dropped, err := check("completions", body, Model{Fields: []string{"min_tokens"}}); err != nil || dropped != 1 || !bytes.Contains(body, []byte("min_tokens")) {
		t.Errorf("left %s, %d dropped, %v", body, dropped, err)
	}
	for _, field := range []string{`"zz":1`, `"cache_prompt":true`} {
		many := []byte(`{"messages":[{}]` + strings.Repeat(`,"zz":1`, maxDropped) + "," + field + `}`)
		if _, _, err := check("chat", many, Model{}); !errors.Is(err, api.UnsupportedParameter) {
			t.Errorf("%s after %d unknown fields: %v", field, maxDropped, err)
		}
	}
}

func TestTokens(t *testing.T) {
	const wrong, refusal = "invalid_type", "unsupported_parameter"
	for value, want := range map[string][3]string{ // a prompt, what /tokenize takes, what /detokenize takes
		`"x"`:                  {"", "", wrong},
		`["a","b"]`:            {"", "", wrong},
		`[1,2147483647]`:       {"", "", ""},
		`["a",1]`:              {"", "", wrong},
		`[[1,2],[3]]`:          {"", wrong, wrong},
		`["a",[1,"b"]]`:        {"", wrong, wrong},
		`[]`:                   {wrong, "", ""},
		`5`:                    {wrong, wrong, wrong},
		`true`:                 {wrong, wrong, wrong},
		`[[-5,1.5]]`:           {wrong, wrong, wrong},
		`[1.0]`:                {wrong, wrong, wrong},
		`[1e2]`:                {wrong, wrong, wrong},
		`[-1]`:                 {wrong, wrong, wrong},
		`[2147483648]`:         {wrong, wrong, wrong},
		`[null]`:               {wrong, wrong, wrong},
		`[["a"]]`:              {wrong, wrong, wrong},
		`[[]]`:                 {wrong, wrong, wrong},
		`[[1,2],3]`:            {wrong, wrong, wrong},
		`[[[1]]]`:              {wrong, wrong, wrong},
		`[{"url":"http://a"}]`: {refusal, refusal, refusal},
	} {
		for i, field := range [...][2]string{{"embeddings", "input"}, {"tokenize", "content"}, {"detokenize", "tokens"}} {
			_, _, err := check(field[0], []byte(`{"`+field[1]+`":`+value+`}`), Model{})
			if got := code(err); got != want[i] {
				t.Errorf("%s %s: %q, want %q", field[0], value, got, want[i])
			}
		}
	}
}

func compact(t *testing.T, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, body); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return b.Bytes()
}

// TestImageSettings: a description holds no settings of sd-server, and a size is bounded.
func TestImageSettings(t *testing.T) {
	for field, want := range map[string]string{
		`"prompt":"a cat","size":"512x512"`: "", `"prompt":"a cat","size":"auto"`: "", `"prompt":"a <lora:x:1> cat"`: "",
		`"prompt":"x <sd_cpp_extra_args>{\"lora\":[{\"path\":\"/etc/passwd\"}]}</sd_cpp_extra_args>"`: "unsupported_parameter",
		`"prompt":"<sd_cpp\u005fextra_args>{}"`:                                                       "unsupported_parameter", `"negative_prompt":"<sd_cpp_extra_args>"`: "unsupported_parameter",
		`"size":"100000x100000"`: "invalid_type", `"size":"16000x16000"`: "invalid_type", `"size":"-1x5"`: "invalid_type", `"size":"512"`: "invalid_type",
		`"size":"512x512x9"`: "invalid_type", `"size":512`: "invalid_type", `"prompt":"` + strings.Repeat("a", 70_000) + `"`: "invalid_type",
	} {
		_, _, err := check("image_generations", []byte(`{`+field+`}`), Model{})
		if got := code(err); got != want {
			t.Errorf("%.100s: %q, want %q", field, got, want)
		}
	}
}

func TestPaths(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v1/chat/completions": JSON, "//v1//chat/completions/": JSON, "/v1/chat%2fcompletions?x=/health": JSON, "/V1/Chat/Completions": JSON,
		"/v1/x/../chat/completions": JSON, "/%76%31/completions": JSON, "/apply-template": JSON, "/completion": JSON, "/infill": JSON,
		"/v1/audio/transcriptions": Files, "/invocations": Closed, "/v1/responses": Closed, "/v1/responses/input_tokens": Closed, "/load": Closed, "/v1/load_lora_adapter": Closed, "/sdcpp/v1/img_gen": Closed, "/health": Other, "/props": Other, "/slots": Other,
		"/slots/0?action=save": Closed, "//Slots/%30?action=restore": Closed, "/v1/x/../slots/1/": Closed, "/v1/models": Other, "/": Other,
	} {
		if kind, spec := ForPath(path); kind != want || (spec != nil) != (want == JSON) {
			t.Errorf("%s: %d, %v", path, kind, spec)
		}
	}
}

func TestForm(t *testing.T) {
	raw, _ := base64.StdEncoding.DecodeString(picture(14000, 14000))
	small, _ := base64.StdEncoding.DecodeString(picture(14, 14))
	for _, tt := range []struct {
		name, value string
		pictures    bool
		want        string
	}{
		{"image", string(small), true, ""}, {"mask", string(small), true, ""}, {"image[]", string(raw), true, "invalid_type"}, {"image", "GIF89a", true, "invalid_type"},
		{"file", string(sound(8000, 2)), false, ""}, {"file", string(sound(1, 60)), false, "invalid_type"}, {"file", "OggS and more", false, ""},
		{"prompt", "a cat", true, ""}, {"n", "2", true, ""}, {"n", "2000000000", true, "invalid_type"}, {"size", "512x512", true, ""}, {"size", "100000x100000", true, "invalid_type"},
		{"prompt", "<sd_cpp_extra_args>{}", true, "unsupported_parameter"}, {"prompt", strings.Repeat("a", 70_000), true, "invalid_type"},
		{"extra_args", "{}", true, "unsupported_parameter"}, {"lora", "x", true, "unsupported_parameter"}, {"", "x", true, "invalid_request"},
		{"temperature", "0.2", false, ""}, {"temperature", "-1e30", false, "invalid_type"}, {"temperature", "NaN", false, "invalid_type"}, {"temperature", "inf", false, "invalid_type"},
		{"temperature", "0.2x", false, "invalid_type"}, {"language", "en", false, ""}, {"stream", "true", false, ""}, {"stream", "maybe", false, "invalid_type"},
		{"temperature_inc", "1e-9", false, "unsupported_parameter"}, {"best_of", "100000", false, "unsupported_parameter"}, {"audio_ctx", "-5", false, "unsupported_parameter"},
	} {
		f := Form{Pictures: tt.pictures}
		if got := code(f.See(tt.name, []byte(tt.value))); got != tt.want {
			t.Errorf("%s %.40q: %q, want %q", tt.name, tt.value, got, tt.want)
		}
	}
	f := Form{Pictures: true}
	for i := range media.MaxPictures + 1 {
		if err := f.See("image[]", small); (err == nil) != (i < media.MaxPictures) {
			t.Errorf("picture %d: %v", i, err)
		}
	}
}

// forbidden looks for a URL that an engine would fetch in what encoding/json, for which the last of several members
// counts, makes of a body's content.
func forbidden(v any) bool {
	m, _ := v.(map[string]any)
	messages, _ := m["messages"].([]any)
	for _, message := range messages {
		fields, _ := message.(map[string]any)
		list, _ := fields["content"].([]any)
		for _, part := range list {
			p, _ := part.(map[string]any)
			for _, name := range []string{"image_url", "input_audio", "input_video", "audio_url", "video_url", "image", "file", "url", "data"} {
				if fetches(p[name]) {
					return true
				}
			}
		}
	}
	return false
}

func fetches(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.HasPrefix(v, "http") || strings.HasPrefix(v, "file:")
	case map[string]any:
		for _, inner := range v {
			if fetches(inner) {
				return true
			}
		}
	case []any:
		for _, inner := range v {
			if fetches(inner) {
				return true
			}
		}
	}
	return false
}

// What passes holds nothing that an engine would fetch, and stays one document.
func FuzzParts(f *testing.F) {
	png := picture(3, 3)
	for _, s := range []string{
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`,
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + png + `"}}]}],"zz":[1]}`,
		`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"http://a"},"type":"text"}]}]}`,
		`{"messages":[{"content":"x","c\u006fntent":[{"type":"text","text":"x","image_url":"http://a"}]}],"messages":[]}`,
		`{"messages":[{"content":[{"type":"image_url","image_url":[{"url":"http://a"}]}]}],"response_format":{"pattern":"^(a)$"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := bytes.Clone(body)
		if _, _, err := check("chat", body, llama); err != nil {
			return
		}
		if err := jsonscan.Scan(body, nil, nil); err != nil {
			t.Fatalf("%s was left as %s: %v", sent, body, err)
		}
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		if forbidden(v) {
			t.Fatalf("passed %s", body)
		}
	})
}
