package jsonscan

import (
	"bytes"
	"io"
	"mime/multipart"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func field(name, value string) string {
	return "Content-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value
}

func file(name, value string) string {
	return "Content-Disposition: form-data; name=\"" + name + "\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + value
}

func form(boundary string, parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		b.WriteString("--" + boundary + "\r\n" + p + "\r\n")
	}
	b.WriteString("--" + boundary + "--\r\n")
	return b.Bytes()
}

func TestMultipart(t *testing.T) {
	names := []string{"model", "file", "stream"}
	tests := []struct {
		name   string
		body   string
		want   [3]string // "-" marks a missing field
		broken bool
	}{
		{name: "all", body: string(form("B", field("model", "w"), file("file", "RIFF\r\n--x"), field("stream", "true"))), want: [3]string{"w", "RIFF\r\n--x", "true"}},
		{name: "none", body: string(form("B", field("other", "w"))), want: [3]string{"-", "-", "-"}},
		{name: "no parts", body: "--B--\r\n", want: [3]string{"-", "-", "-"}},
		{name: "preamble and epilogue", body: "hello\r\n" + string(form("B", field("model", "w"))) + "bye", want: [3]string{"w", "-", "-"}},
		{name: "blanks behind delimiter", body: "--B \t\r\n" + field("model", "w") + "\r\n--B--", want: [3]string{"w", "-", "-"}},
		{name: "empty content", body: "--B\r\n" + field("model", "") + "\r\n--B--", want: [3]string{"", "-", "-"}},
		{name: "content missing", body: "--B\r\nContent-Disposition: form-data; name=model\r\n\r\n--B--", want: [3]string{"", "-", "-"}},
		{name: "no header", body: "--B\r\n\r\nx\r\n--B--", want: [3]string{"-", "-", "-"}},
		{name: "last wins", body: string(form("B", field("model", "a"), field("model", "b"))), want: [3]string{"b", "-", "-"}},
		{name: "unquoted name, odd case", body: "--B\r\ncontent-DISPOSITION: form-data; NAME=model\r\n\r\nm\r\n--B--", want: [3]string{"m", "-", "-"}},
		{name: "raw UTF-8 file name", body: "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"Größe.wav\"\r\n\r\nm\r\n--B--", want: [3]string{"-", "m", "-"}},
		{name: "file name with a blank and no quotes", body: "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=my file.wav\r\n\r\nm\r\n--B--", want: [3]string{"-", "m", "-"}},
		{name: "two file names", body: "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"; filename=\"b\"\r\n\r\nm\r\n--B--", want: [3]string{"-", "m", "-"}},
		{name: "two names", body: "--B\r\nContent-Disposition: form-data; name=\"file\"; name=\"model\"\r\n\r\nm\r\n--B--", want: [3]string{"-", "-", "-"}},
		{name: "not form-data", body: "--B\r\nContent-Disposition: attachment; name=model\r\n\r\nm\r\n--B--", want: [3]string{"-", "-", "-"}},
		{name: "empty", body: "", broken: true},
		{name: "cut in content", body: "--B\r\n" + field("model", "w"), broken: true},
		{name: "cut in header", body: "--B\r\nContent-Disposition: form-data", broken: true},
		{name: "cut behind delimiter", body: "--B", broken: true},
		{name: "other boundary", body: string(form("C", field("model", "w"))), broken: true},
		{name: "delimiter goes on", body: "--Bx\r\n" + field("model", "w") + "\r\n--B--", broken: true},
		{name: "a header that ends at bare line feeds", body: "--B\r\nContent-Disposition: form-data; name=model\n\nw\r\n\r\nx\r\n--B--", broken: true},
		{name: "a header with a NUL", body: "--B\r\nA: \x00\r\nContent-Disposition: form-data; name=model\r\n\r\nx\r\n--B--", broken: true},
		{name: "endless header", body: "--B\r\nA: " + strings.Repeat("x", 9000) + "\r\n\r\n\r\n--B--", broken: true},
		{name: "too many parts", body: string(form("B", strings.Split(strings.Repeat(field("a", "")+"|", 300), "|")...)), broken: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := []Part{{Present: true}, {Present: true}, {Present: true}}
			err := Multipart([]byte(tt.body), "B", names, out)
			if (err != nil) != tt.broken {
				t.Fatalf("error %v, want broken=%v", err, tt.broken)
			}
			if tt.broken {
				return
			}
			for i, p := range out {
				got := "-"
				if p.Present {
					got = p.String()
				}
				if got != tt.want[i] {
					t.Errorf("%s = %q, want %q", names[i], got, tt.want[i])
				}
			}
		})
	}
}

func TestBoundary(t *testing.T) {
	tests := []struct {
		in, want string
		ok       bool
	}{
		{"multipart/form-data; boundary=abc", "abc", true},
		{`Multipart/Form-Data; charset=utf-8; boundary="a b"`, "a b", true},
		{"multipart/form-data;boundary=a=b/c:d", "a=b/c:d", true},
		{"multipart/form-data; boundary=a; boundary=b", "", false},
		{"multipart/form-data", "", false},
		{"multipart/mixed; boundary=abc", "", false},
		{"application/json", "", false},
		{"", "", false},
		{"multipart/form-data; boundary=" + strings.Repeat("x", 71), "", false},
	}
	for _, tt := range tests {
		got, ok := Boundary(tt.in)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("Boundary(%q) = %q, %v; want %q, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

// Whatever the standard writer wrote is read back, contents that look like
// delimiters included.
func TestMultipartAgainstWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := rapid.StringOf(rapid.RuneFrom([]rune("ab-\r\n "))).Draw(t, "model")
		data := rapid.SliceOf(rapid.SampledFrom([]byte("\r\n-Xx"))).Draw(t, "data")
		var buf bytes.Buffer
		w := multipart.NewWriter(&buf)
		if err := w.SetBoundary("XxXxXxXxXxXxXxXx"); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(w.Boundary())) {
			t.Skip("the content holds the boundary")
		}
		_ = w.WriteField("model", model)
		f, _ := w.CreateFormFile("file", "x")
		_, _ = f.Write(data)
		_ = w.Close()
		var out [2]Part
		if err := Multipart(buf.Bytes(), w.Boundary(), []string{"model", "file"}, out[:]); err != nil {
			t.Fatal(err)
		}
		if out[0].String() != model || !bytes.Equal(out[1].Value, data) {
			t.Fatalf("read %+v, wrote %q and %q", out, model, data)
		}
	})
}

// What is accepted is what the standard reader finds in it.
func FuzzMultipart(f *testing.F) {
	f.Add(form("B", field("model", "w"), file("file", "RIFF\r\n--x")))
	f.Add([]byte("--B--"))
	f.Add([]byte("--B\r\n\r\n--B\r\nContent-Disposition: form-data; name=model\r\n\r\n\r\n--B--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var out [1]Part
		if Multipart(body, "B", []string{"model"}, out[:]) != nil {
			return
		}
		r := multipart.NewReader(bytes.NewReader(body), "B")
		var last []byte
		present := false
		for {
			p, err := r.NextRawPart()
			if err == io.EOF {
				break
			}
			if err != nil {
				return // stricter about headers than a router needs to be
			}
			data, err := io.ReadAll(p)
			if err != nil {
				return
			}
			if p.FormName() == "model" {
				last, present = data, true
			}
		}
		if present && out[0].Present && !bytes.Equal(last, out[0].Value) {
			t.Fatalf("model is %q, the standard reader has %q", out[0].Value, last)
		}
	})
}
