package bodycheck

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
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
	var e *wire.Error
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

// picture is a PNG of those dimensions as a header tells them, without pixels.
func picture(width, height uint32) string {
	var b bytes.Buffer
	b.WriteString("\x89PNG\r\n\x1a\n")
	head := binary.BigEndian.AppendUint32([]byte("IHDR"), width)
	head = append(binary.BigEndian.AppendUint32(head, height), 8, 2, 0, 0, 0)
	_ = binary.Write(&b, binary.BigEndian, uint32(len(head)-4))
	b.Write(head)
	_ = binary.Write(&b, binary.BigEndian, crc32.ChecksumIEEE(head))
	_ = binary.Write(&b, binary.BigEndian, uint32(0))
	b.WriteString("IDAT")
	_ = binary.Write(&b, binary.BigEndian, crc32.ChecksumIEEE([]byte("IDAT")))
	return base64.StdEncoding.EncodeToString(b.Bytes())
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
		`{"type":"image_url","image_url":"` + png + `"}`:                                                                "",
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
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"see https://a"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"http://a"}}]}]}]}`, remote},
		{"messages", `{"messages":[{"content":[{"type":"tool_use","id":"t","name":"f","input":{"url":"https://a","image_url":"https://b"}}]}]}`, ""},
		{"messages", `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, refusal},
		{"messages", `{"system":[{"type":"image","source":{"type":"url","url":"http://a"}}],"messages":[{}]}`, refusal},
		{"responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"` + png + `"}]}]}`, ""},
		{"responses", `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"http://a"}]}]}`, remote},
		{"responses", `{"input":[{"role":"user","content":[{"type":"input_file","file_url":"http://a"}]}]}`, refusal},
		{"responses", `{"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"http://a"}]}]}`, refusal},
		{"responses", `{"input":[{"type":"item_reference","id":"x"}]}`, refusal},
		{"responses", `{"input":"x","tools":[{"type":"mcp","server_url":"http://a"}]}`, "invalid_type"},
		{"completions", `{"prompt":[{"prompt_string":"x","multimodal_data":["http://a"]}]}`, refusal},
		{"embeddings", `{"input":[{"type":"image_url","image_url":{"url":"http://a"}}]}`, refusal},
		{"embeddings", `{"input":[[1,2],[3]]}`, ""},
		{"tokenize", `{"content":[{"url":"http://a"}]}`, refusal},
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
	body := []byte(`{"prompt":"x","min_tokens":3,"zz":1}`)
	if _, dropped, err := check("completions", body, Model{Fields: []string{"min_tokens"}}); err != nil || dropped != 1 || !bytes.Contains(body, []byte("min_tokens")) {
		t.Errorf("left %s, %d dropped, %v", body, dropped, err)
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

func TestPatterns(t *testing.T) {
	for p, ok := range map[string]bool{
		"^[a-z]+$": true, "^(a|b){1,40}$": true, "^[^a]*x?$": true, `^a\.b$`: true, "^$": true, "^(?:ab)+$": true, `^[\]]$`: true, "^([a-z]+,)+[a-z]+$": true,
		"^+[a-z]$": false, "^{2}times$": false, "^{,5}a$": false, "^a{,5}$": false, "^]$": false, "^}$": false, "^a{2,1}$": false, "^(+a)$": false,
		"^(a?){1000}$": false, "^((a{0,100}){0,100}){0,100}$": false, "^([ab]{1,40}){1,40}$": false, "^(a*)*$": false, "^[]$": false, "^[]a]$": false,
		"^[[:alpha:]]$": false, "^a**$": false, "^(?=a)b$": false, `^\d+$`: false, `^\`: false, `^a\$`: false, "a": false, "": false, "^[a$": false,
		"^" + strings.Repeat("(", 400) + "a" + strings.Repeat(")", 400) + "$": false,
		"^" + strings.Repeat("a", 2000) + "$":                                 false,
	} {
		if _, err := checkPattern(p, false); (err == nil) != ok {
			t.Errorf("%.60s: %v", p, err)
		}
	}
	for p, ok := range map[string]bool{ // of tools
		`^\d{3}-\w+$`: true, "abc+": true, "^(?=.*[a-z])[a-z]+$": true, `^\u00e9+$`: true,
		"^(?=a)+$": false, "^+a$": false, "^]$": false, "^(a?){1000}$": false, "+": true,
	} {
		if _, err := checkPattern(p, true); (err == nil) != ok {
			t.Errorf("lenient, %.60s: %v", p, err)
		}
	}
}

func TestGrammars(t *testing.T) {
	chain := func(n int) string {
		s := "root ::= r0\n"
		for i := range n {
			s += fmt.Sprintf("r%d ::= r%d\n", i, i+1)
		}
		return s
	}
	for g, ok := range map[string]bool{
		`root ::= "a" | "b" x*` + "\n" + `x ::= [a-z]{1,5} # words` + "\n":            true,
		`root ::= ` + strings.Repeat(`"a"{0,512} `, 400):                              false,
		`root ::= ` + strings.Repeat(`[^x]* `, 3000):                                  false,
		`root ::= ` + strings.Repeat(`[^x]* `, 128):                                   true,
		`root ::= ` + strings.Repeat(`[^x]* `, 129):                                   false,
		`root ::= root "a" | "b"`:                                                     true, // for the engine to refuse
		`root ::= ("a" | ("b" "c")+)? ws` + "\nws ::= [ \\t\\n]*":                     true,
		`root ::= ` + strings.Repeat("(", 30000) + `"a"` + strings.Repeat(")", 30000): false,
		`root ::= ` + strings.Repeat("(", 65) + `"a"` + strings.Repeat(")", 65):       false,
		`root ::= "a"{2,1}`:                               false,
		`root ::= "a"{0,99999}`:                           false,
		`root ::= ("a"{0,40}){0,40}`:                      false,
		"root ::= a{0,40}\na ::= \"x\"{0,40}":             false,
		"root ::= a{0,10}\na ::= \"x\"{0,40}":             true,
		"root ::= [" + strings.Repeat("a", 600) + "]":     false,
		"root ::= " + strings.Repeat(`"a"|`, 300) + `"b"`: false,
		chain(900):      true,
		chain(1100):     false,
		`root ::= "a`:   false,
		`root ::= *`:    false,
		`root ::= ("a"`: false,
		`root ::= "a")`: false,
		`root ::= "\""`: true,
		`root ::= [\]]`: true,
	} {
		if err := checkGrammar(g); (err == nil) != ok {
			t.Errorf("%.60s: %v", g, err)
		}
	}
}

func TestSchemas(t *testing.T) {
	names := func(n int) string {
		s := ""
		for i := range n {
			s += fmt.Sprintf(`,"p%d":{}`, i)
		}
		return `{"properties":{` + strings.TrimPrefix(s, ",") + `}}`
	}
	for s, ok := range map[string]bool{
		`{"type":"object","properties":{"pattern":{"type":"string"},"minimum":{"type":"number"},"$ref":{"type":"string"}}}`: true,
		`{"$ref":"#/$defs/n","$defs":{"n":{"properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}}`:       true,
		`{"enum":["^+",{"pattern":"^+a$"}],"default":{"pattern":"^+a$"}}`:                                                   true,
		`{"type":"integer","minimum":9223372036854775807}`:                                                                  false,
		`{"type":"integer","exclusiveMaximum":-9007199254740992}`:                                                           false,
		`{"type":"integer","exclusiveMinimum":500,"exclusiveMaximum":-5}`:                                                   false,
		`{"type":"integer","minimum":-999999999999999,"exclusiveMaximum":5}`:                                                true,
		`{"anyOf":[` + strings.Repeat(`{"pattern":"^[a-z]*[0-9]*$"},`, 64) + `{}]}`:                                         true,
		`{"anyOf":[` + strings.Repeat(`{"pattern":"^[a-z]*[0-9]*$"},`, 65) + `{}]}`:                                         false,
		`{"$ref":"#"}`:                               false,
		`{"$ref":"http://127.0.0.1/x"}`:              false,
		`{"\u0024ref":"http://127.0.0.1/x"}`:         false,
		`{"anyOf":[{"$ref":"#"},{"type":"string"}]}`: false,
		`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`:  false,
		`{"properties":{"a":{"items":{"pattern":"^+[a-z]$"}}}}`:                             false,
		`{"p\u0061ttern":"^+[a-z]$"}`:                                                       false,
		`{"pattern":"^a$","pattern":"^+[a-z]$"}`:                                            false,
		`{"minItems":9,"maxItems":2}`:                                                       false,
		`{"minLength":9,"maxLength":2}`:                                                     false,
		`{"maxLength":1e99}`:                                                                false,
		`{"minItems":-1}`:                                                                   false,
		`{"properties":{"` + strings.Repeat("p", 30000) + `":{}},"additionalProperties":1}`: false,
		`{"enum":[` + strings.Repeat("1,", 600) + `1]}`:                                     false,
		names(150): true,
		names(300): false,
		strings.Repeat(`{"items":`, 200) + "{}" + strings.Repeat("}", 200): false,
	} {
		for route, format := range map[string]string{
			"chat":        `{"messages":[{}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":%s}}}`,
			"completions": `{"prompt":"x","json_schema":%s}`,
			"responses":   `{"input":"x","text":{"format":{"type":"json_schema","schema":%s}}}`,
			"messages":    `{"messages":[{}],"tools":[{"name":"f","input_schema":%s}]}`,
		} {
			c, _, err := check(route, fmt.Appendf(nil, format, s), llama)
			if (err == nil) != ok || err == nil && !c.Constrained {
				t.Errorf("%s %.100s: %v", route, s, err)
			}
		}
	}
	for body, constrained := range map[string]bool{
		`{"messages":[{}],"response_format":{"type":"text"}}`: false, `{"messages":[{}],"response_format":{"type":"json_object"}}`: true,
		`{"messages":[{}],"grammar":""}`: false, `{"messages":[{}],"tools":[]}`: false, `{"messages":[{}]}`: false,
	} {
		if c, _, err := check("chat", []byte(body), llama); err != nil || c.Constrained != constrained {
			t.Errorf("%s: constrained %v, %v", body, c.Constrained, err)
		}
	}
}

func TestPaths(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v1/chat/completions": JSON, "//v1//chat/completions/": JSON, "/v1/chat%2fcompletions?x=/health": JSON, "/V1/Chat/Completions": JSON,
		"/v1/x/../chat/completions": JSON, "/%76%31/completions": JSON, "/apply-template": JSON, "/completion": JSON, "/infill": JSON,
		"/v1/audio/transcriptions": Files, "/invocations": Closed, "/health": Other, "/props": Other, "/v1/models": Other, "/": Other,
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
		file     []byte
		pictures bool
		ok       bool
	}{
		{small, true, true}, {raw, true, false}, {[]byte("GIF89a"), true, false},
		{sound(8000, 2), false, true}, {sound(1, 60), false, false}, {[]byte("OggS and more"), false, true},
	} {
		if err := Form("file", [][]byte{tt.file}, tt.pictures); (err == nil) != tt.ok {
			t.Errorf("%.20q: %v", tt.file, err)
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
		if !peek.Valid(body) {
			t.Fatalf("%s was left as %s", sent, body)
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

// Checkers of patterns and grammars end, whatever they read.
func FuzzConstraints(f *testing.F) {
	f.Add("^(a|b){1,4}[^x]*$")
	f.Add("root ::= (\"a\" | [b-c]{1,2})* x\nx ::= <think>")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		_, _ = checkPattern(text, false)
		_, _ = checkPattern(text, true)
		_ = checkGrammar(text)
	})
}
