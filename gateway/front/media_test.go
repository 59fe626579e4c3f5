package front

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
)

func TestRemoteMedia(t *testing.T) {
	for text, refused := range map[string]bool{
		`[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]`:                          false,
		`[{"content":[{"type":"image_url","image_url":{"url":"https://a.test/x"}}]}]`:                                  true,
		`[{"content":[{"type":"image_url","image_url":"http://169.254.169.254/"}]}]`:                                   true,
		`[{"content":[{"type":"image_url","image_url":{"detail":"low","url":"file:///etc/passwd"}}]}]`:                 true,
		`[{"content":[{"type":"image_url","image\u005furl":{"\u0075rl":"http://a"}}]}]`:                                true,
		`[{"content":[{"image_url" : { "url" :"data:x"},"image_url":{"url":"http://a"}}]}]`:                            true,
		`[{"content":[{"image_url":[{"url":"http://a"}]}]}]`:                                                           true,
		`[{"content":[{"type":"input_file","file_url":"https://a"}]}]`:                                                 true,
		`[{"content":[{"type":"image","source":{"type":"url","url":"https://a"}}]}]`:                                   true,
		`[{"content":[{"type":"image","source":{"type":"base64","data":"AA"}}]}]`:                                      false,
		`[{"content":[{"type":"document","source":{"type":"text","data":"see https://a"}}]}]`:                          false,
		`[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"http://a"}}]}]}]`: true,
		`[{"content":[{"type":"tool_use","input":{"url":"https://a","image_url":"https://b","source":{"url":"c"}}}]}]`: false,
		`[{"annotations":[{"type":"url_citation","url_citation":{"url":"https://a"}}],"content":"\u00e9"}]`:            false,
		`[{"content":"say \"image_url\":\"http://a\" \\"}]`:                                                            false,
		`"https://a/image_url\""`: false,
		`[]`:                      false,
		``:                        false,
	} {
		if err := remoteMedia([]byte(text)); errors.Is(err, wire.RemoteMediaDisabled) != refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzRemoteMedia: the walk ends on every valid document, and finds at least a plain image_url.
func FuzzRemoteMedia(f *testing.F) {
	f.Add(`{"a":[1,true,null,{"b":"\\\""}],"image_url":"http://a"}`)
	f.Add(`[{"image_url":{"url":"x"}} , 1e5]`)
	f.Fuzz(func(t *testing.T, text string) {
		if !peek.Valid([]byte(`{"v":` + text + `}`)) {
			return
		}
		_ = remoteMedia([]byte(text))
		quoted, err := json.Marshal(map[string]any{"x": json.RawMessage(text), "image_url": "http://a"})
		if err != nil || strings.Contains(text, `input`) || strings.Contains(text, `\u`) {
			return
		}
		if remoteMedia(quoted) == nil {
			t.Errorf("not found in %s", quoted)
		}
	})
}
