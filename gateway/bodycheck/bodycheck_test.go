package bodycheck

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"mime/multipart"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

const (
	unsupported = "unsupported_parameter"
	invalid     = "invalid_type"
	remote      = "remote_media_disabled"
	missing     = "missing_required_parameter"
)

var llama = Model{LlamaCpp: true}

var specs = map[string]*Spec{
	"chat": Chat, "messages": Messages, "completions": Completions, "embeddings": Embeddings, "rerank": Rerank, "tokenize": Tokenize,
	"detokenize": Detokenize, "speech": Speech, "image_generations": Image,
}

// check checks a body on a route, which it changes, and returns what the engine gets.
func check(route string, body []byte, m Model) (c Check, out []byte, dropped int, err error) {
	if err = c.Read(specs[route], body); err != nil {
		return c, nil, 0, err
	}
	out, dropped, err = c.Finish(specs[route], body, func() Model { return m })
	return c, out, dropped, err
}

// code returns the code of an error for the client, "" for none.
func code(err error) string {
	var e *api.Error
	if errors.As(err, &e) {
		if e.Param == "" {
			return e.Code + " without a parameter"
		}
		return e.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// image returns a black image in base64. The header of a large one announces more than it has.
func picture(width, height int) string {
	var file bytes.Buffer
	side := func(n int) int { return min(n, 100) }
	_ = png.Encode(&file, image.NewGray(image.Rect(0, 0, side(width), side(height)))) // into memory
	header := file.Bytes()[12:33]                                                     // the chunk IHDR and its checksum
	binary.BigEndian.PutUint32(header[4:], uint32(width))
	binary.BigEndian.PutUint32(header[8:], uint32(height))
	binary.BigEndian.PutUint32(header[17:], crc32.ChecksumIEEE(header[:17]))
	return b64(file.Bytes())
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// Content reaches an engine only in the parts that it knows, with media in data: URLs or base64 alone. Other members of
// parts are left out.
func TestParts(t *testing.T) {
	image := func(url string) string { return `{"type":"image_url","image_url":{"url":"` + url + `"}}` }
	sound := b64([]byte("RIFF, any bytes"))
	url := "data:image/png;base64," + picture(10, 10)
	chat := map[string]string{
		`{"type":"text","text":"see https://a.test"}`: "",
		`"a text"`: "",
		image(url): "",
		image(strings.ReplaceAll(url, "/", `\/`)):                                                                     "",
		`{"image_url":{"detail":"low","url":"` + url + `"},"type":"image_url"}`:                                       "",
		`{"type":"input_audio","input_audio":{"data":"` + sound + `","format":"wav"}}`:                                "",
		`{"type":"input_audio","input_audio":{"data":"data:audio/wav;base64,` + sound + `","format":"wav"}}`:          "",
		`{"type":"input_video","input_video":{"data":"` + sound + `"}}`:                                               "",
		`{"type":"image_url","image_url":"` + url + `","detail":"low"}`:                                               "",
		`{"type":"image_url","image_url":"` + url + `","image_url":{"url":"http://a"}}`:                               remote,
		image("https://a.test/x.png"):                                                                                 remote,
		image("HTTP://a.test/x.png"):                                                                                  remote,
		image("file:///etc/passwd"):                                                                                   remote,
		image("data:text/html;base64,AAAA"):                                                                           unsupported,
		image("data:image/png,AAAA"):                                                                                  unsupported,
		`{"type":"image_url","image_url":"http://a"}`:                                                                 remote,
		`{"type":"image_url","image\u005furl":{"\u0075rl":"http://a"}}`:                                               remote,
		`{"type":"image_url","image_url":{"url":"` + url + `","url":"http://a"}}`:                                     remote,
		`{"type":"image_url","image_url":{"url":"` + url + `"},"image_url":{"url":"http://a"}}`:                       remote,
		`{"type":"text","type":"image_url","text":"x","image_url":{"url":"http://a"}}`:                                unsupported,
		`{"type":"image_url","type":"text","text":"x","image_url":{"url":"http://a"}}`:                                unsupported,
		`{"type":"image_url","image_url":[{"url":"http://a"}]}`:                                                       invalid,
		`{"type":"image_url","image_url":{"url":{"url":"http://a"}}}`:                                                 unsupported,
		`{"type":"image_url","image_url":null}`:                                                                       invalid,
		`{"type":"image_url"}`:                                                                                        missing,
		`{"type":"image_url","image_url":{}}`:                                                                         missing,
		`{"type":["image_url"],"image_url":{"url":"http://a"}}`:                                                       unsupported,
		`{"image_url":{"url":"http://a"}}`:                                                                            unsupported,
		`{"type":"input_video","input_video":{"url":"http://a"}}`:                                                     missing,
		`{"type":"input_video","input_video":{"data":"http://a"}}`:                                                    unsupported,
		`{"type":"input_audio","input_audio":{"data":"\u0068ttp:\/\/a"}}`:                                             unsupported,
		`{"type":"input_audio","input_audio":"http://a"}`:                                                             invalid,
		`{"type":"audio_url","audio_url":{"url":"http://a"}}`:                                                         unsupported,
		`{"type":"video_url","video_url":{"url":"http://a"}}`:                                                         unsupported,
		`{"type":"image","image":"http://a"}`:                                                                         unsupported,
		`{"type":"file","file":{"file_data":"http://a"}}`:                                                             unsupported,
		`{"type":"media_marker","text":"x"}`:                                                                          unsupported,
		`[{"type":"image_url","image_url":{"url":"http://a"}}]`:                                                       invalid,
		image("data:image/png;base64," + picture(14000, 14000)):                                                       invalid,
		image("data:image/png;base64," + picture(1<<31-1, 1<<31-1)):                                                   invalid,
		image("data:image/png;base64," + b64([]byte("no picture at all"))):                                            invalid,
		image(url) + strings.Repeat(","+image(url), maxImages-1):                                                      "",
		image(url) + strings.Repeat(","+image(url), maxImages):                                                        invalid,
		strings.TrimSuffix(strings.Repeat(image("data:image/png;base64,"+picture(6000, 6000))+",", 2), ","):           invalid,
		image(url + strings.Repeat("A", 28_000_000)):                                                                  invalid,
		`{"type":"input_audio","input_audio":{"data":"` + strings.Repeat("A", 34_000_000) + `"}}`:                     invalid,
		strings.TrimSuffix(strings.Repeat(`{"type":"input_audio","input_audio":{"data":""}},`, maxAudios+1), ","):     invalid,
		`{"type":"text","text":"x"` + strings.Repeat(`,"y":1`, maxDropped+1) + `}`:                                    unsupported + " without a parameter",
		`{"type":"tool_result","content":"x"}`:                                                                        unsupported,
		`{"type":"input_audio","input_audio":{"data":"` + sound[:8] + `\n` + sound[8:] + `","url":"http://a"}}`:       "",
		`{"type":"image_url","image_url":{"url":"` + url[:60] + `\n` + url[60:] + `","min_pixels":4,"format":"png"}}`: "",
	}
	for part, want := range chat {
		_, body, _, err := check("chat", []byte(`{"messages":[{"role":"user","content":[`+part+`]}]}`), llama)
		if got := code(err); got != want {
			t.Errorf("%.150s: %q, want %q", part, got, want)
		}
		if bytes.Contains(body, []byte(`"image_url":"`)) {
			t.Errorf("%.150s was left as %.300s", part, body)
		}
		if err == nil && (!json.Valid(body) || bytes.Contains(body, []byte(`\n`)) || bytes.Contains(body, []byte("http://a"))) {
			t.Errorf("%.150s was left as %.300s", part, body)
		}
	}
	for _, tt := range []struct{ route, body, want string }{
		{"chat", `{"messages":"x"}`, invalid},
		{"chat", `{"messages":["x"]}`, invalid},
		{"chat", `{"messages":[{"role":"user","content":"x","image_url":"http://a"}]}`, unsupported},
		{"chat", `{"messages":[{"role":"user","content":"x","images":[],"image":null,"url":""}]}`, ""},
		{"chat", `{"messages":[{"role":"user","content":"x"},{"content":{"url":"http://a"}}]}`, invalid},
		{"chat", `{"messages":[{"content":[{"type":"input_text","text":["x"]}]}]}`, missing},
		{"chat", `{"messages":[{"content":"x","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, remote},
		{"chat", `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}],"content":"x"}]}`, remote},
		{"chat", `{"messages":[{"content":"x"}],"messages":[{"content":[{"type":"text"}]}]}`, "invalid_request"},
		{"chat", `{"messages":[{"content":"x"}],"m\u0065ssages":[]}`, "invalid_request"},
		{"chat", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"url\":\"https://a\"}"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + picture(9, 9) + `"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://a"}}]}]}`, remote},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"` + picture(9, 9) + `","url":"https://a"}}]}]}`, remote},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"https://a"}}]}]}`, unsupported},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"data:image/png;base64,` + picture(9, 9) + `"}}]}]}`, unsupported},
		{"messages", `{"messages":[{"content":[{"type":"image","source":{"type":"base64"}}]}]}`, missing},
		{"messages", `{"messages":[{"content":[{"type":"image"}]}]}`, missing},
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"see https://a"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"base64","data":"AAAA"}}]}]}`, unsupported},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"http://a"}}]}]}]}`, remote},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","is_error":false},{"type":"tool_result","content":null}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_use","id":"t","name":"f","input":{"url":"https://a","image_url":"https://b"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, unsupported},
		{"messages", `{"messages":[{"content":[{"type":"x","source":{"type":"url","url":"http://a"}}]}]}`, unsupported},
		{"messages", `{"messages":[{"content":[{"text":"x"}]}]}`, unsupported},
		{"messages", `{"system":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}],"messages":[{}]}`, ""},
		{"messages", `{"system":[{"type":"image","source":{"type":"url","url":"http://a"}}],"messages":[{}]}`, unsupported},
		{"messages", `{"system":{"url":"http://a"},"messages":[{}]}`, invalid},
		{"completions", `{"prompt":[{"prompt_string":"x","multimodal_data":["http://a"]}]}`, unsupported},
		{"completions", `{"prompt":["a",[1,2,"b"]]}`, ""},
		{"tokenize", `{"content":[[{"url":"http://a"}]]}`, unsupported},
		{"detokenize", `{"tokens":[1,2]}`, ""},
	} {
		_, _, _, err := check(tt.route, []byte(tt.body), llama)
		if got := code(err); got != tt.want {
			t.Errorf("%s %.150s: %q, want %q", tt.route, tt.body, got, tt.want)
		}
	}
}

// Members that no rule names, nulls and members of parts that no engine needs are left out; what reaches into a shared
// engine is refused.
func TestFieldsAreChecked(t *testing.T) {
	for _, tt := range []struct{ route, body, left, want string }{
		{"chat", `{"messages":[{}],"temperature":0.5,"zz":1}`, `{"messages":[{}],"temperature":0.5}`, ""},
		{"chat", `{"zz":{"a":[1]},"y":2, "messages":[{}]}`, `{"messages":[{}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"search_result","source":"https://a","title":"T","content":[{"type":"text","text":"a \"b\""},{"type":"text","text":"c"}]}]}]}`,
			`{"messages":[{"content":[{"type":"text","text":"a \"b\"\nc"}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"a"},"title":"T"}]}]}`,
			`{"messages":[{"content":[{"type":"text","text":"a"}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"content","content":[{"type":"text","text":"a"}]}}]}]}`,
			`{"messages":[{"content":[{"type":"text","text":"a"}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"q"}},{"type":"text","text":"x"}]}]}`,
			`{"messages":[{"content":[{"type":"text","text":"x"}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"x"},{"type":"compaction","content":"so far"},{"type":"advisor_tool_result","content":{"text":"a"}}]},` +
			`{"content":[{"type":"x"}]},{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"x","text":"b"},{"type":"x"}]}]}]}`,
			`{"messages":[{"content":[{"type":"text","text":"so far"},{"type":"text","text":"a"}]},` +
				`{"content":""},{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"b"}]}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_search_tool_result","tool_use_id":"t","content":{"tool_references":[{"tool_name":"f"}]}}]}],"tools":[{"name":"f"}]}`,
			`{"messages":[{"content":[{"type":"text","text":"f"}]}],"tools":[{"name":"f"}]}`, ""},
		{"chat", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}},{"type":"function","function":{"name":"g","arguments":"{}"}}]},{"role":"tool"},{"role":"user"}]}`,
			`{"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"arguments":"{}","name":"f"}},{"type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"content":"","role":"tool"},{"role":"user"}]}`, ""},
		{"chat", `{"messages":[{}],"tools":[{"type":null,"function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]}`,
			`{"messages":[{}],"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]}`, ""},
		{"chat", `{"messages":[{"content":[{"type":"thinking","thinking":"x","":{"url":"http://a"}},{"type":"output_text","text":"a"}]},{"content":[{"type":"reasoning","text":"x"}]},` +
			`{"content":[{"type":"refusal","refusal":"no"},{"type":"input_text","text":"b","cache_control":{}}]}]}`,
			`{"messages":[{"content":[{"type":"text","text":"a"}]},{"content":""},{"content":[{"type":"text","text":"no"},{"type":"text","text":"b"}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"tool_reference","tool_name":"f"}]}]}]}`,
			`{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"f"}]}]}]}`, ""},
		{"chat", `{"messages":[{}],"top_k":null,"reasoning_format":null,"tools":null,"stop":["a"]}`, `{"messages":[{}],"stop":["a"]}`, ""},
		{"chat", `{"messages":[{}],"cache_prompt":true}`, `{"messages":[{}]}`, ""},
		{"chat", `{"messages":[{}],"cache_prompt":false}`, `{"messages":[{}],"cache_prompt":false}`, ""},
		{"chat", `{"messages":[{"content":[{"type":"text","text":"x","thought_signature":"y","image_url":{"url":"http://a"},"file_id":1}]}]}`, `{"messages":[{"content":[{"type":"text","text":"x"}]}]}`, ""},
		{"chat", `{"messages":[{}],"tools":[{"type":"function","function":{"name":"f","description":null,"parameters":{"default":null}}}]}`,
			`{"messages":[{}],"tools":[{"type":"function","function":{"name":"f","parameters":{"default":null}}}]}`, ""},
		{"chat", `{"messages":[{"role":"user","name":null,"content":"a"},{"content":null,"tool_calls":null,"tool_call_id":null}]}`,
			`{"messages":[{"role":"user","content":"a"},{"content":null}]}`, ""},
		{"chat", `{"messages":[{}],"id_slot":null}`, `{"messages":[{}]}`, ""},
		{"chat", `{"messages":[{}],"id_slot":0}`, "", unsupported},
		{"chat", `{"messages":[{}],"lora":[{"id":0}]}`, "", unsupported},
		{"chat", `{"messages":[{}],"lora":[ ],"mcp_servers":[],"chat_template":"","structured_outputs":{}}`, `{"messages":[{}]}`, ""},
		{"completions", `{"prompt":"x","chat_parser":"{}"}`, "", unsupported},
		{"completions", `{"prompt":"x","chat\u005fparser":"{}"}`, "", unsupported},
		{"completions", `{"prompt":"x","n":17,"samplers":"ee"}`, `{"prompt":"x","n":17,"samplers":"ee"}`, ""},
		{"embeddings", `{"input":[1000.0,[2e1,"1.0"],1.5]}`, `{"input":[1000,[20,"1.0"],1.5]}`, ""},
		{"completions", `{"prompt":[2.0,1e9]}`, `{"prompt":[2,1e9]}`, ""},
		{"embeddings", `{"input":"a","encoding_format":null,"zz":1}`, `{"input":"a"}`, ""},
		{"rerank", `{"query":"x","documents":["a",{"text":"b","title":"c"}],"rank_fields":["d"]}`, `{"query":"x","documents":["a",{"text":"b","title":"c"}]}`, ""},
		{"image_generations", `{"prompt":"a <lora:x:1> cat","size":"1x1"}`, `{"prompt":"a <lora:x:1> cat","size":"1x1"}`, ""},
		{"image_generations", `{"prompt":"<sd_cpp\u005fextra_args>{}"}`, "", unsupported},
		{"image_generations", `{"negative_prompt":"<sd_cpp_extra_args>{}"}`, "", unsupported},
	} {
		_, body, _, err := check(tt.route, []byte(tt.body), Model{})
		if got := code(err); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.route, tt.body, got, tt.want)
		} else if tt.want == "" && compact(t, body) != tt.left {
			t.Errorf("%s %s: left %s, want %s", tt.route, tt.body, body, tt.left)
		}
	}
	body := []byte(`{"prompt":"x","min_tokens":3,"zz":1,"seed":null}`)
	if _, _, dropped, err := check("completions", body, Model{Fields: []string{"min_tokens"}}); err != nil || dropped != 1 || compact(t, body) != `{"prompt":"x","min_tokens":3}` {
		t.Errorf("left %s, %d dropped, %v", body, dropped, err)
	}
	if _, _, _, err := check("chat", []byte(`{"messages":[{}]`+strings.Repeat(`,"zz":1`, maxDropped+1)+`}`), Model{}); !errors.Is(err, api.UnsupportedParameter) {
		t.Error(err)
	}
	if c, _, _, err := check("chat", []byte(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`+picture(99, 99)+`"}}]}]}`), llama); err != nil || c.Text > 100 {
		t.Errorf("%d bytes of text, %v", c.Text, err)
	}
}

func compact(t *testing.T, body []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, body); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return b.String()
}

// Only the form of llama-server's inputs with images passes, with base64 alone, and only to models with a projector.
func TestInputsWithImages(t *testing.T) {
	png := picture(10, 10)
	input := func(data ...string) string {
		return `{"prompt_string":"` + strings.Repeat("<__media__>", len(data)) + `","multimodal_data":["` + strings.Join(data, `","`) + `"]}`
	}
	vision, blind, other := Model{LlamaCpp: true, Vision: true}, llama, Model{Vision: true}
	for _, tt := range []struct {
		input string
		model Model
		want  string
	}{
		{`[` + input(png) + `]`, vision, ""},
		{`["a text",` + input(png, png) + `,[1,2,"x"]]`, vision, ""},
		{`"a text"`, blind, ""}, {`[[1,2],[3]]`, other, ""},
		{`[` + input(png) + `]`, blind, unsupported},
		{`[` + input(png) + `]`, other, unsupported},
		{`[` + input(png) + strings.Repeat(","+input(png), maxImages) + `]`, vision, invalid},
		{`[` + input(picture(14000, 14000)) + `]`, vision, invalid},
		{`[` + input("data:image/png;base64,"+png) + `]`, vision, unsupported},
		{`[` + input(`\u0068ttp:\/\/a`) + `]`, vision, unsupported},
		{`[` + input(`file:///etc/passwd`) + `]`, vision, unsupported},
		{`[{"prompt_string":"x","multimodal_data":["` + png + `"]}]`, vision, invalid},
		{`[{"prompt_string":"x","multimodal_data":[{"url":"http://a"}]}]`, vision, unsupported},
		{`[{"prompt_string":"x","multimodal_data":"` + png + `"}]`, vision, unsupported},
		{`[{"prompt_string":"x","multimodal_data":["http://a"],"multimodal_data":["` + png + `"]}]`, vision, unsupported},
		{`[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + png + `"}}]`, vision, unsupported},
		{`[[` + input(png) + `]]`, vision, unsupported},
		{input(png), vision, unsupported},
	} {
		if _, _, _, err := check("embeddings", []byte(`{"input":`+tt.input+`}`), tt.model); code(err) != tt.want {
			t.Errorf("%.150s, %+v: %q, want %q", tt.input, tt.model, code(err), tt.want)
		}
	}
}

// Schemas and grammars are bounded in bytes and nesting, and refer to nothing outside. Bounds that real clients send
// and llama.cpp rejects are lowered or left out.
func TestSchemas(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"items":`, n) + "{}" + strings.Repeat("}", n) }
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"$ref":{"type":"string"},"minimum":{"type":"number"}}}`: "",
		`{"$ref":"#/$defs/n","$defs":{"n":{"pattern":"^\\p{L}+$"}}}`:                            "",
		`{"$ref":"http://127.0.0.1/x"}`:                                                         unsupported,
		`{"anyOf":[{"\u0024ref":"file:///etc/passwd"}]}`:                                        unsupported,
		deep(50):  "",
		deep(200): invalid,
		`{"enum":["` + strings.Repeat("a", maxSchema) + `"]}`: invalid,
	} {
		for route, format := range map[string]string{
			"chat":        `{"messages":[{}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":%s}}}`,
			"completions": `{"prompt":"x","json_schema":%s}`,
			"messages":    `{"messages":[{}],"tools":[{"name":"f","input_schema":%s}]}`,
		} {
			if _, _, _, err := check(route, fmt.Appendf(nil, format, schema), llama); code(err) != want {
				t.Errorf("%s %.100s: %v", route, schema, err)
			}
		}
	}
	if _, _, _, err := check("completions", []byte(`{"prompt":"x","grammar":"`+strings.Repeat("a", maxSchema)+`"}`), llama); code(err) != invalid {
		t.Errorf("a long grammar: %v", err)
	}
	const sent = `{"messages":[{}],"tools":[{"a":{"minimum":-9007199254740991,"exclusiveMaximum":9007199254740991,"maximum":5,"maxLength":524288},"b":{"maxLength":99,"minimum":-1e300,"maximum":1e16}}]}`
	const left = `{"messages":[{}],"tools":[{"a":{"minimum":-999999999999999,"exclusiveMaximum":999999999999999,"maximum":5,"x-maxText":524288},"b":{"maxLength":99,"minimum":-9e14,"maximum":9e14}}]}`
	for engine, want := range map[*Model]string{&llama: left, {}: sent} {
		if _, body, _, err := check("messages", []byte(sent), *engine); err != nil || compact(t, body) != want {
			t.Errorf("%+v: %s, %v", engine, body, err)
		}
	}
}

// llama-server passes over the format of a message, so a response by a schema is refused rather than given without one.
func TestMessageFormat(t *testing.T) {
	const format = `{"type":"json_schema","schema":{"type":"object"}}`
	for config, want := range map[string]string{
		`{"format":` + format + `}`: unsupported, `{"effort":"low","format":` + format + `}`: unsupported,
		`{"effort":"low"}`: "", `{"format":{"type":"text"}}`: "", `null`: "",
	} {
		body := []byte(`{"messages":[{}],"output_config":` + config + `}`)
		if _, _, _, err := check("messages", bytes.Clone(body), Model{}); err != nil {
			t.Errorf("%s, another engine: %v", config, err)
		}
		if _, _, _, err := check("messages", body, llama); code(err) != want {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func TestFormatOfLlama(t *testing.T) {
	const object = `{"type":"json_object","schema":{"type":"object"}}`
	for format, want := range map[string]string{
		`{"type":"json_object"}`: object, `{"type":"json\u005fobject"}`: object, `{"schema":{"type":"object"},"type":"json_object"}`: "",
		`{"type":"json_object","value":{"type":"array"}}`: `{"type":"json_object","schema":{"type":"array"}}`, `{"type":"json_object","value":1}`: object,
		`{"value":{"type":"array"},"schema":{"type":"object"},"type":"json_object"}`: "",
		`{"type":"text"}`: "", `{"type":"json_schema","json_schema":{"schema":{}}}`: "", `null`: "",
	} {
		body := []byte(`{"messages":[{}],"response_format":` + format + `}`)
		if c, _, _, err := check("chat", bytes.Clone(body), Model{}); err != nil || c.format != nil {
			t.Errorf("%s, another engine: %s, %v", format, c.format, err)
		}
		if c, _, _, err := check("chat", body, llama); err != nil || string(c.format) != want {
			t.Errorf("%s: %s, %v", format, c.format, err)
		}
	}
}

// A body that is decoded has no more values than a text of its size would have commas.
func TestDecodable(t *testing.T) {
	for body, ok := range map[string]bool{
		`{"messages":[{"role":"user","content":"` + strings.Repeat("some words, and more ", 200_000) + `"}]}`: true,
		`{"messages":[` + strings.Repeat("{},", maxValues) + `{}]}`:                                           false,
		`{"images":[` + strings.Repeat(`"",`, maxValues) + `""]}`:                                             false,
	} {
		if err := Decodable([]byte(body)); (err == nil) != ok {
			t.Errorf("%.60s: %v", body, err)
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

// Fields of a form that are empty or that no rule names do not reach the engine.
func TestForm(t *testing.T) {
	var jpg, gf bytes.Buffer
	if err := errors.Join(jpeg.Encode(&jpg, image.NewGray(image.Rect(0, 0, 9, 9)), nil), gif.Encode(&gf, image.NewGray(image.Rect(0, 0, 9, 9)), nil)); err != nil {
		t.Fatal(err)
	}
	huge, _ := base64.StdEncoding.DecodeString(picture(14000, 14000))
	type fields [][2]string
	for _, tt := range []struct {
		fields fields
		images bool
		left   string
		want   string
	}{
		{fields{{"model", "m"}, {"vad_filter", "true"}, {"hotwords", "a"}, {"file", "any bytes"}, {"temperature", ""}, {"language", "en"}}, false, "model file language", ""},
		{fields{{"vad_filter", "true"}, {"temperature_inc", "1e-9"}, {"file", "any bytes"}, {"model", "m"}}, false, "file model", ""},
		{fields{{"file", "x"}, {"model", "m"}, {"", "y"}, {"best_of", "9"}}, false, "file model", ""},
		{fields{{"image", jpg.String()}, {"mask", gf.String()}, {"prompt", "a cat"}, {"lora", "x"}}, true, "image mask prompt", ""},
		{fields{{"image[]", string(huge)}}, true, "", invalid}, {fields{{"image", "GIF89a"}}, true, "", invalid},
		{fields{{"prompt", "<sd_cpp_extra_args>{}"}}, true, "", unsupported}, {fields{{"prompt", strings.Repeat("a", maxField+1)}}, false, "", invalid},
	} {
		var sent bytes.Buffer
		w := multipart.NewWriter(&sent)
		for _, f := range tt.fields {
			if err := w.WriteField(f[0], f[1]); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.Close()
		form, _, err := Form(sent.Bytes(), w.Boundary(), tt.images)
		if code(err) != tt.want {
			t.Errorf("%.80q: %v, want %q", tt.fields, err, tt.want)
		}
		if err != nil {
			continue
		}
		var left []string
		for r := multipart.NewReader(bytes.NewReader(form), w.Boundary()); ; {
			p, err := r.NextPart()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%.80q: %v in %q", tt.fields, err, form)
			}
			left = append(left, p.FormName())
		}
		if got := strings.Join(left, " "); got != tt.left {
			t.Errorf("%.80q: left %q, want %q", tt.fields, got, tt.left)
		}
	}
}

// wouldFetch looks for a URL that an engine would fetch in what encoding/json, for which the last of several members
// counts, makes of a body's content.
func wouldFetch(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.HasPrefix(v, "http") || strings.HasPrefix(v, "file:")
	case map[string]any:
		for name, inner := range v {
			if name != "text" && name != "refusal" && !plainMembers[name] && wouldFetch(inner) {
				return true
			}
		}
	case []any:
		for _, inner := range v {
			if wouldFetch(inner) {
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
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image\/png;base64,` + png + `\n"},"a":null}]}],"zz":[1]}`,
		`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"http://a"},"type":"text"}]}]}`,
		`{"messages":[{"content":"x","c\u006fntent":[{"type":"text","text":"x","image_url":"http://a"}]}],"messages":[]}`,
		`{"messages":[{"content":[{"type":"image_url","image_url":[{"url":"http://a"}]}]}],"tools":[{"function":{"a":null}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := bytes.Clone(body)
		_, body, _, err := check("chat", body, llama)
		if err != nil {
			return
		}
		if err := jsonscan.Scan(body, nil, nil); err != nil {
			t.Fatalf("%s was left as %s: %v", sent, body, err)
		}
		var v map[string]any // exact names
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		messages, _ := v["messages"].([]any)
		for _, m := range messages {
			message, _ := m.(map[string]any)
			if list, _ := message["content"].([]any); wouldFetch(list) {
				t.Fatalf("passed %s", body)
			}
		}
	})
}
