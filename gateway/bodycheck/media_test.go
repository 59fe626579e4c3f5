package bodycheck

import (
	"bytes"
	"testing"

	"reveille/testenv/mediafile"
)

// TestMediaInRequests: the checks above stand before an engine.
func TestMediaInRequests(t *testing.T) {
	lines := func(file []byte) string { return b64(file)[:62] + `\n` + b64(file)[62:] }
	for name, part := range map[string]string{
		"MP3":                    `{"type":"input_audio","input_audio":{"format":"mp3","data":"` + b64(mediafile.MP3("", "Xing\x00\x00\x00\x01\x00\x04\x93\xe0", 3)) + `"}}`,
		"FLAC":                   `{"type":"input_audio","input_audio":{"format":"flac","data":"` + b64(mediafile.FLAC(384_000, 8, 7200*384_000, 243)) + `"}}`,
		"line ends in a sound":   `{"type":"input_audio","input_audio":{"format":"wav","data":"` + lines(mediafile.WAV(16_000, [3]uint32{16_000, 2, 16})) + `"}}`,
		"line ends in a picture": `{"type":"image_url","image_url":{"url":"data:image/gif;base64,` + lines(mediafile.GIF(10, 100)) + `"}}`,
		"one sample":             `{"type":"input_audio","input_audio":{"format":"wav","data":"` + b64(mediafile.OneSample) + `"}}`,
		"JPEG":                   `{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + b64(mediafile.JPEG(0xC2, 6320, 2000)) + `"}}`,
		"GIF":                    `{"type":"image_url","image_url":{"url":"data:image/gif;base64,` + b64(mediafile.GIF(10, 400_000)) + `"}}`,
	} {
		_, _, err := check("chat", []byte(`{"messages":[{"role":"user","content":[`+part+`]}]}`), llama)
		if got := code(err); got != "invalid_type" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// BenchmarkMedia: a photo of 5 MB, and sounds of 5 MB, in base64.
func BenchmarkMedia(b *testing.B) {
	photo := bytes.Replace(mediafile.JPEG(0xC0, 4000, 1), []byte("more"), bytes.Repeat(append(bytes.Repeat([]byte{0x5A}, 200), 0xFF, 0), 25_000), 1)
	for name, part := range map[string]string{
		"jpeg": `{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + b64(photo) + `"}}`,
		"wav":  `{"type":"input_audio","input_audio":{"data":"` + b64(mediafile.WAV(5_000_000, [3]uint32{16_000, 2, 16})) + `"}}`,
		"mp3":  `{"type":"input_audio","input_audio":{"data":"` + b64(mediafile.MP3("", "", 50_000)) + `"}}`,
	} {
		body := []byte(`{"messages":[{"role":"user","content":[` + part + `]}]}`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, _, err := check("chat", body, llama); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The pinned llama-server ends by an assertion over a prompt that ends with a sound, or with a picture of some models.
func TestPromptsThatEndWithMedia(t *testing.T) {
	const (
		refusal = "unsupported_parameter"
		off     = `,"add_generation_prompt":false`
	)
	sound := `{"type":"input_audio","input_audio":{"data":"` + b64(sound(8000, 1)) + `","format":"wav"}}`
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + picture(10, 10) + `"}}`
	block := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + picture(10, 10) + `"}}`
	text := func(text string) string { return `{"type":"text","text":"` + text + `"}` }
	user := func(parts string) string { return `{"role":"user","content":[` + parts + `]}` }
	assistant := func(content string) string { return `,{"role":"assistant","content":` + content + `}` }
	for _, tt := range []struct{ route, messages, rest, want string }{
		{"chat", user(text("x") + "," + sound), "", ""},
		{"chat", user(text("x") + "," + sound), off, refusal},
		{"chat", user(image), off, refusal},
		{"chat", user(sound + "," + text("x")), off, ""},
		{"chat", user(sound + "," + text(` \n\u0009`)), off, refusal},
		{"chat", user(sound + `,{"type":"text","text":"","refusal":"x"}`), off, refusal},
		{"chat", user(sound) + assistant(`"x"`), "", ""},
		{"chat", user(sound) + assistant(`""`), "", refusal},
		{"chat", user(sound) + assistant(`[]`), "", refusal},
		{"chat", user(sound) + assistant(`null`), "", refusal},
		{"chat", user(sound+","+text("x")) + assistant(`""`), "", ""},
		{"chat", user(sound) + assistant(`""`) + "," + user(text("")), "", ""},
		{"chat", user(sound) + assistant(`""`) + "," + user(text("x")), off, ""},
		{"chat", user(text("x")) + assistant(`""`), off, ""},
		{"chat", `{"content":[` + sound + `],"role":"assistant"}`, "", refusal},
		{"messages", user(block) + assistant(`""`), "", refusal},
		{"messages", user(`{"type":"tool_result","content":[`+block+","+text("x")+`]}`) + assistant(`""`), "", ""},
		{"messages", user(`{"type":"tool_result","content":[`+text("x")+","+block+`]}`) + assistant(`""`), "", refusal},
	} {
		body := `{"messages":[` + tt.messages + `]` + tt.rest + `}`
		if _, _, err := check(tt.route, []byte(body), llama); code(err) != tt.want {
			t.Errorf("%s, %.40s…%s: %v, want %q", tt.route, tt.messages, tt.rest, err, tt.want)
		}
		if _, _, err := check(tt.route, []byte(body), Model{}); err != nil {
			t.Errorf("%.40s…%s, of another engine: %v", tt.messages, tt.rest, err)
		}
	}
}
