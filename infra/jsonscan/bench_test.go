package jsonscan

import (
	"fmt"
	"strings"
	"testing"
)

// chatKeys are the members a chat request is asked for.
var chatKeys = []string{"model", "stream", "messages"}

// longString is a chat body of about size bytes that is mostly one data URL.
func longString(size int) []byte {
	url := "data:image/png;base64," + strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", size/24)
	return fmt.Appendf(nil, `{"model":"qwen3-4b","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%q}}]}],"stream":true}`, url)
}

// dialogue is a chat body of about size bytes made of many short turns.
func dialogue(size int) []byte {
	turn := `{"role":"user","content":"What is the weather like today?\nAnd tomorrow?"},`
	turns := strings.TrimSuffix(strings.Repeat(turn, size/len(turn)+1), ",")
	return fmt.Appendf(nil, `{"model":"qwen3-4b","messages":[%s],"stream":true}`, turns)
}

// prose is a chat body of about size bytes that is mostly one text outside ASCII.
func prose(size int) []byte {
	text := strings.Repeat("Größe und Maß überprüfen. ", size/32)
	return fmt.Appendf(nil, `{"model":"qwen3-4b","messages":[{"role":"user","content":"%s"}]}`, text)
}

// numbers is an embedding body of about size bytes that is all tokens.
func numbers(size int) []byte {
	return fmt.Appendf(nil, `{"model":"e5","input":[%s]}`, strings.TrimSuffix(strings.Repeat("12345,", size/6), ","))
}

func BenchmarkScan(b *testing.B) {
	shapes := []struct {
		name string
		make func(int) []byte
	}{{"string", longString}, {"dialogue", dialogue}, {"prose", prose}, {"numbers", numbers}}
	for _, shape := range shapes {
		for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dK", shape.name, size>>10), func(b *testing.B) {
				body := shape.make(size)
				var out [3]Value
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if err := Scan(body, chatKeys, out[:]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkMultipart(b *testing.B) {
	body := form("xyz", field("model", "whisper"), file("file", strings.Repeat("\x00\r\nRIFF-data", 1<<16)))
	names := []string{"model", "file"}
	var out [2]Part
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Multipart(body, "xyz", names, out[:]); err != nil {
			b.Fatal(err)
		}
	}
}
