package bodycheck

import (
	"bytes"
	"compress/lzw"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// jpegFile is a grey JPEG file with the given start of frame and number of scans, each with a little data.
func jpegFile(frame byte, side uint16, scans int) []byte {
	file := []byte("\xff\xd8\xff\xe0\x00\x06\xff\xda\xff\xda\xff\xdb\x00\x43\x00" + strings.Repeat("\x01", 64)) // an APP0 that looks like scans
	file = append(file, 0xFF, frame, 0, 11, 8)
	file = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(file, side), side)
	file = append(file, 1, 1, 0x11, 0)
	for range scans {
		file = append(file, "\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x10data\xff\x00\xff\xd0more\xff\xff"...)
	}
	return append(file, "\xff\xd9\xff\xda\xff\xda behind the end \xff\xda"...)
}

// withControl puts a graphic control extension with the given blocks before the frame of a GIF file.
func withControl(file []byte, blocks string) []byte {
	return slices.Concat(file[:19], []byte("\x21\xf9"+blocks), file[19:])
}

// deepPNG is a PNG file of side x side pixels of 16 bits.
func deepPNG(side int) []byte {
	var b bytes.Buffer
	_ = png.Encode(&b, image.NewGray16(image.Rect(0, 0, side, side)))
	return b.Bytes()
}

// gifFile is a GIF file of one frame of side x side pixels with n pixels of data.
func gifFile(side, n int) []byte {
	file := []byte("GIF89a")
	screen := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, uint16(side)), uint16(side))
	file = append(append(file, screen...), 0x80, 0, 0, 0, 0, 0, 9, 9, 9)
	file = append(file, "\x21\xfe\x05hello\x00\x2c\x00\x00\x00\x00"...)
	file = append(append(file, screen...), 0, 2)
	var data bytes.Buffer
	w := lzw.NewWriter(&data, lzw.LSB, 2)
	_, _ = w.Write(make([]byte, n)) // into memory
	_ = w.Close()
	for rest := data.Bytes(); len(rest) > 0; {
		k := min(len(rest), 255)
		file = append(append(file, byte(k)), rest[:k]...)
		rest = rest[k:]
	}
	return append(file, 0, 0x3B)
}

// TestPictureWork: a file makes a decoder do no more than its size needs.
func TestPictureWork(t *testing.T) {
	photo := image.NewPaletted(image.Rect(0, 0, 300, 200), palette.Plan9)
	for i := range photo.Pix {
		photo.Pix[i] = byte(i * i >> 3)
	}
	var sequential, animated bytes.Buffer
	if err := jpeg.Encode(&sequential, photo, nil); err != nil {
		t.Fatal(err)
	}
	if err := gif.EncodeAll(&animated, &gif.GIF{Image: []*image.Paletted{photo, photo}, Delay: []int{1, 1}}); err != nil {
		t.Fatal(err)
	}
	second := bytes.Replace(jpegFile(0xC2, 640, 2), []byte("\xff\xd9"), []byte("\xff\xc2\x00\x0b\x08\x09\x09\x09\x09\x01\x01\x11\x00\xff\xd9"), 1)
	for name, tt := range map[string]struct {
		files [][]byte
		ok    bool
	}{
		"JPEG":                               {[][]byte{sequential.Bytes()}, true},
		"JPEG, cut short":                    {[][]byte{sequential.Bytes()[:700]}, true},
		"JPEG, grey":                         {[][]byte{jpegFile(0xC0, 6320, 1)}, true},
		"JPEG, grey, the component twice":    {[][]byte{jpegFile(0xC0, 640, 2)}, false},
		"JPEG, progressive":                  {[][]byte{jpegFile(0xC2, 4400, 20)}, true},
		"JPEG, progressive, small":           {[][]byte{jpegFile(0xC2, 640, 100)}, true},
		"JPEG, progressive, too many scans":  {[][]byte{jpegFile(0xC2, 64, 101)}, false},
		"JPEG, progressive, large and many":  {[][]byte{jpegFile(0xC2, 6320, 40)}, false},
		"JPEG, progressive, many together":   {[][]byte{jpegFile(0xC2, 3500, 60), jpegFile(0xC2, 3500, 60)}, false},
		"JPEG, two frames":                   {[][]byte{second}, false},
		"JPEG, arithmetic coding":            {[][]byte{jpegFile(0xCA, 640, 1)}, false},
		"GIF":                                {[][]byte{animated.Bytes()}, true},
		"GIF, cut short":                     {[][]byte{animated.Bytes()[:3000]}, true},
		"GIF, one colour":                    {[][]byte{gifFile(900, 900*900)}, true},
		"GIF, pixels behind its last one":    {[][]byte{gifFile(10, 400_000)}, false},
		"GIF, a code that is not yet known":  {[][]byte{append(gifFile(10, 0)[:19+9+11], "\x01\x3c\x00\x3b"...)}, false},
		"GIF, a graphic control":             {[][]byte{withControl(gifFile(10, 100), "\x04\x00\x00\x00\x00\x00")}, true},
		"GIF, one of another size":           {[][]byte{withControl(gifFile(10, 100), "\x03\x00\x00\x00\x00")}, false},
		"PNG, 16 bits":                       {[][]byte{deepPNG(4400)}, true},
		"PNG, 16 bits, too large":            {[][]byte{deepPNG(4500)}, false},
		"JPEG, progressive, too large":       {[][]byte{jpegFile(0xC2, 4500, 2)}, false},
		"GIF, no frame before its end":       {[][]byte{append(gifFile(10, 100)[:19], 0x3B)}, true},
		"GIF, something else than a segment": {[][]byte{append(gifFile(10, 100)[:19], 0x55, 0)}, false},
	} {
		var m media
		var err error
		for _, file := range tt.files {
			if e := m.pictureFile("file", bytes.NewReader(file), len(file)); e != nil {
				err = e
			}
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// mp3File is an MPEG-1 mono file of 32 kbit/s: before, a frame with tag in its first bytes of sound, and frames more.
func mp3File(before, tag string, frames int) []byte {
	frame := append([]byte("\xff\xfb\x10\xc4"), make([]byte, 100)...)
	first := bytes.Clone(frame)
	copy(first[4+17:], tag)
	return append(append([]byte(before), first...), bytes.Repeat(frame, frames)...)
}

// flacFile is the head of a FLAC file, filled up to size bytes.
func flacFile(rate, channels, samples uint64, size int) []byte {
	file := []byte("fLaC\x80\x00\x00\x22\x10\x00\x10\x00\x00\x00\x00\x00\x00\x00")
	file = binary.BigEndian.AppendUint64(file, rate<<44|(channels-1)<<41|15<<36|samples)
	return append(file, make([]byte, size-len(file))...)
}

// wavFile is a WAV file with the given format chunks: rate, bytes of a frame, and bits.
func wavFile(size int, formats ...[3]uint32) []byte {
	file := []byte("RIFF\xff\xff\xff\xffWAVE")
	for _, f := range formats {
		file = append(file, "fmt \x10\x00\x00\x00\x01\x00\x01\x00"...)
		file = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(file, f[0]), f[0])
		file = append(file, byte(f[1]), byte(f[1]>>8), byte(f[2]), 0)
	}
	return append(append(file, "data\xff\xff\xff\xff"...), make([]byte, size)...)
}

// floatFile is a WAV file of floats of one or two words, a second of silence with the values at its end.
func floatFile(words uint32, values ...float32) []byte {
	file := bytes.Replace(wavFile(8_000*4*int(words), [3]uint32{8_000, 4 * words, 32 * words}), []byte("\x10\x00\x00\x00\x01\x00"), []byte("\x10\x00\x00\x00\x03\x00"), 1)
	for _, v := range values {
		if words == 1 {
			file = binary.LittleEndian.AppendUint32(file, math.Float32bits(v))
		} else {
			file = binary.LittleEndian.AppendUint64(file, math.Float64bits(float64(v)))
		}
	}
	return file
}

// oggFile is an Ogg file with the head of a Vorbis stream and a page at a position, filled up to size bytes.
func oggFile(rate uint32, position uint64, size int) []byte {
	file := []byte("OggS\x00\x02" + strings.Repeat("\x00", 20) + "\x01\x1e\x01vorbis\x00\x00\x00\x00\x01")
	file = append(binary.LittleEndian.AppendUint32(file, rate), make([]byte, size)...)
	return append(binary.LittleEndian.AppendUint64(append(file, "OggS\x00\x04"...), position), make([]byte, 50)...)
}

// oneSample is a WAV file of one sample, over which llama-server ends itself.
var oneSample = []byte("RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00\x10\x00data\x02\x00\x00\x00\x01\x00")

// TestSoundLength: a file announces no more than it can hold, and no more than a request may.
func TestSoundLength(t *testing.T) {
	frames := func(mark string, n uint32) string {
		if mark == "VBRI" {
			mark += strings.Repeat("\x00", 6)
		}
		return string(binary.BigEndian.AppendUint32([]byte(mark+"\x00\x00\x00\x01"), n))
	}
	far := strings.Repeat("x", 32<<10-64) // so that the mark lies across two parts of what is read
	id3 := "ID3\x04\x00\x00\x00\x00\x01\x02" + strings.Repeat("t", 130)
	for name, tt := range map[string]struct {
		file       []byte
		ok, upload bool
	}{
		"MP3":                                  {mp3File("", "", 5), true, true},
		"MP3, true":                            {mp3File("", frames("Xing", 50), 50), true, true},
		"MP3, true, tagged":                    {mp3File(id3+id3, frames("Info", 50), 50), true, true},
		"MP3, tells nothing":                   {mp3File("", "Xing\x00\x00\x00\x0e\x7f\xff\xff\xff", 3), false, false},
		"MP3, no frame around the mark":        {mp3File("", "x"+frames("Xing", 1e6), 3), true, true},
		"MP3, lie":                             {mp3File("", frames("Xing", 300_000), 3), false, false},
		"MP3, lie, Info":                       {mp3File("", frames("Info", 300_000), 3), false, false},
		"MP3, lie, tagged":                     {mp3File(id3, frames("Xing", 300_000), 3), false, false},
		"MP3, lie, behind a frame":             {mp3File(string(mp3File("", "", 2)), frames("Xing", 300_000), 3), false, false},
		"MP3, lie, far behind":                 {mp3File("\xff\xe0"+far, frames("Xing", 300_000), 3), false, false},
		"MP3, too long":                        {mp3File("", frames("Xing", 60_000_000), 90_000), false, false},
		"MP3, a tag longer than the file":      {mp3File("ID3\x04\x00\x00\x7f\x7f\x7f\x7f", "", 3), false, false},
		"MP3, tags without end":                {[]byte(strings.Repeat(id3, 17)), false, false},
		"FLAC":                                 {flacFile(16_000, 1, 160_000, 9_000), false, true},
		"FLAC, silence":                        {flacFile(16_000, 1, 16_000*3600, 20_000), false, false},
		"FLAC, tagged":                         {append([]byte(id3), flacFile(16_000, 1, 160_000, 9_000)...), false, true},
		"FLAC, lie":                            {flacFile(384_000, 8, 7200*384_000, 243), false, false},
		"FLAC, lie, tagged":                    {append([]byte(id3), flacFile(384_000, 8, 7200*384_000, 243)...), false, false},
		"FLAC, samples of all channels":        {flacFile(48_000, 8, 13_000_000, 9_000), false, false},
		"WAV":                                  {wavFile(8_000, [3]uint32{8_000, 1, 8}), true, true},
		"WAV, two formats":                     {wavFile(8_000, [3]uint32{16_000, 2, 16}, [3]uint32{1, 1, 8}), false, false},
		"WAV, a frame larger than its samples": {wavFile(9_000_000, [3]uint32{1_000, 65_535, 8}), false, false},
		"WAV, an MP3 file behind":              {mp3File(string(wavFile(50, [3]uint32{8_000, 1, 8})), frames("Xing", 300_000), 3), true, true},
		"WAV, one sample":                      {oneSample, false, false},
		"WAV, ADPCM":                           {bytes.Replace(wavFile(8_000, [3]uint32{8_000, 1, 8}), []byte("\x10\x00\x00\x00\x01\x00"), []byte("\x10\x00\x00\x00\x11\x00"), 1), false, false},
		"WAV, data announced as less":          {bytes.Replace(wavFile(8_000, [3]uint32{8_000, 1, 8}), []byte("data\xff\xff\xff\xff"), []byte("data\x01\x00\x00\x00"), 1), false, false},
		"MP3, less than decoders leave out":    {mp3File("", frames("Info", 7), 50), false, false},
		"MP3, one frame":                       {mp3File("", "", 0), false, true},
		"MP3, frames without a bit rate":       {bytes.Repeat([]byte("\xff\xf5\x08\xc0"), 1000), false, false},
		"MP3, these inside others":             {append(mp3File("", "", 50), bytes.Repeat([]byte("\xff\xf5\x08\xc0\x00\x00\x00"), 20)...), false, false},
		"MP3, half an hour and more":           {mp3File("", "", 69_000), false, true},
		"MP3, of a low rate first":             {append(bytes.Repeat(append([]byte("\xff\xe3\x88\xc4"), make([]byte, 572)...), 3), mp3File("", "", 20_000)...), false, true},
		"WAV, floats":                          {floatFile(1, 0.5, -maxSample), true, true},
		"WAV, a float that is no number":       {floatFile(1, float32(math.NaN())), false, false},
		"WAV, an infinite float":               {floatFile(1, 0, float32(math.Inf(-1))), false, false},
		"WAV, a large float":                   {floatFile(1, 3.3e38), false, false},
		"WAV, floats of 64 bits":               {floatFile(2, 1), true, true},
		"WAV, a large float of 64 bits":        {floatFile(2, 17), false, false},
		"WAV, a format of odd length":          {bytes.Replace(bytes.Replace(wavFile(8_000, [3]uint32{8_000, 1, 8}), []byte("fmt \x10"), []byte("fmt \x13"), 1), []byte("data"), []byte("\x01\x00\x00\x00\x00data"), 1), false, false},
		"WAV, no data":                         {wavFile(0, [3]uint32{8_000, 1, 8})[:36], false, false},
		"Ogg":                                  {oggFile(48_000, 4_800_000, 9_000), false, true},
		"Ogg, no position":                     {oggFile(48_000, 1<<64-1, 9_000), false, true},
		"Ogg, lie":                             {oggFile(48_000, 48_000*7200, 9_000), false, false},
		"Ogg, lie, tagged":                     {append([]byte(id3), oggFile(48_000, 48_000*7200, 9_000)...), false, false},
		"Ogg, too long":                        {oggFile(8_000, 8_000*7300, 90_000), false, false},
		"Ogg, a low rate":                      {oggFile(1, 6_000, 9_000), false, false},
		"AIFF":                                 {[]byte("FORM\x00\x00\x00\x20AIFF" + far), false, false},
		"another, with MP3 frames":             {mp3File("anything", frames("Xing", 300_000), 3), false, false},
		"another":                              {[]byte("\x00\x00\x00\x20ftypM4A " + far), false, true},
	} {
		for _, upload := range []bool{false, true} {
			want := tt.ok
			if upload {
				want = tt.upload
			}
			if err := soundError(tt.file, upload); (err == nil) != want {
				t.Errorf("%s, upload %t: %v", name, upload, err)
			}
		}
	}
	var m media
	hour := flacFile(16_000, 1, 16_000*3600, 1_800_000)
	for i, ok := range []bool{true, true, false} {
		if err := m.upload("file", bytes.NewReader(hour), len(hour)); (err == nil) != ok {
			t.Errorf("hour %d: %v", i+1, err)
		}
	}
}

// soundError checks a sound in a form, or in a message.
func soundError(file []byte, upload bool) error {
	var err *api.Error
	if upload {
		err = new(media).upload("file", bytes.NewReader(file), len(file))
	} else {
		text := jsonscan.Value{Kind: jsonscan.String, Raw: []byte(`"` + b64(file) + `"`)}
		err = new(media).sound("data", text.TextReader(), len(text.Raw))
	}
	if err == nil {
		return nil
	}
	return err
}

// TestMediaInRequests: the checks above stand before an engine.
func TestMediaInRequests(t *testing.T) {
	lines := func(file []byte) string { return b64(file)[:62] + `\n` + b64(file)[62:] }
	for name, part := range map[string]string{
		"MP3":                    `{"type":"input_audio","input_audio":{"format":"mp3","data":"` + b64(mp3File("", "Xing\x00\x00\x00\x01\x00\x04\x93\xe0", 3)) + `"}}`,
		"FLAC":                   `{"type":"input_audio","input_audio":{"format":"flac","data":"` + b64(flacFile(384_000, 8, 7200*384_000, 243)) + `"}}`,
		"line ends in a sound":   `{"type":"input_audio","input_audio":{"format":"wav","data":"` + lines(wavFile(16_000, [3]uint32{16_000, 2, 16})) + `"}}`,
		"line ends in a picture": `{"type":"image_url","image_url":{"url":"data:image/gif;base64,` + lines(gifFile(10, 100)) + `"}}`,
		"one sample":             `{"type":"input_audio","input_audio":{"format":"wav","data":"` + b64(oneSample) + `"}}`,
		"JPEG":                   `{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + b64(jpegFile(0xC2, 6320, 2000)) + `"}}`,
		"GIF":                    `{"type":"image_url","image_url":{"url":"data:image/gif;base64,` + b64(gifFile(10, 400_000)) + `"}}`,
	} {
		_, _, err := check("chat", []byte(`{"messages":[{"role":"user","content":[`+part+`]}]}`), llama)
		if got := code(err); got != "invalid_type" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestBase64Reader: it reads what base64.NewDecoder reads, and fails where that fails, and at line ends.
func TestBase64Reader(t *testing.T) {
	whole := make([]byte, 20_000)
	for i := range whole {
		whole[i] = byte(i * i >> 5)
	}
	for _, n := range []int{0, 1, 2, 3, 4, 100, 6143, 6144, 6145, 12288, 20_000} {
		text := b64(whole[:n])
		lines := strings.ReplaceAll(text, "A", "A\r\n")
		for _, tt := range []string{text, lines, text + "\n", text + "A", text + "!AAA", text + "AAAA", text + "==", strings.TrimRight(text, "="), "\n" + text} {
			want, wantErr := io.ReadAll(base64.NewDecoder(base64.StdEncoding, strings.NewReader(tt)))
			if strings.ContainsAny(tt, "\r\n") {
				wantErr = errLineEnd
			}
			for _, r := range []io.Reader{strings.NewReader(tt), iotest.OneByteReader(strings.NewReader(tt)), iotest.DataErrReader(strings.NewReader(tt))} {
				got, err := io.ReadAll(&base64Reader{text: r})
				if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
					t.Errorf("%d bytes, %.20q at the end: %d bytes, %v, want %d, %v", n, tt[max(0, len(tt)-20):], len(got), err, len(want), wantErr)
				}
			}
		}
	}
}

// BenchmarkMedia: a photo of 5 MB, and sounds of 5 MB, in base64.
func BenchmarkMedia(b *testing.B) {
	photo := bytes.Replace(jpegFile(0xC0, 4000, 1), []byte("more"), bytes.Repeat(append(bytes.Repeat([]byte{0x5A}, 200), 0xFF, 0), 25_000), 1)
	for name, part := range map[string]string{
		"jpeg": `{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + b64(photo) + `"}}`,
		"wav":  `{"type":"input_audio","input_audio":{"data":"` + b64(wavFile(5_000_000, [3]uint32{16_000, 2, 16})) + `"}}`,
		"mp3":  `{"type":"input_audio","input_audio":{"data":"` + b64(mp3File("", "", 50_000)) + `"}}`,
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

// What llama-server reads as a picture although it is called a video has a size that nobody checked.
func TestVideos(t *testing.T) {
	for name, tt := range map[string]struct {
		head string
		ok   bool
	}{
		"MP4":           {"\x00\x00\x00\x20ftypisom", true},
		"Matroska":      {"\x1a\x45\xdf\xa3\x01\x00\x00\x00\x00\x00\x00\x23", true},
		"AVI":           {"RIFF\x00\x00\x00\x00AVI ", true},
		"TGA":           {"\x04\x00\x02\x00ftyp\x00\x00\x00\x00", false},
		"TGA, coloured": {"\x00\x01\x01\x00ftyp\x18\x00\x00\x00", false},
		"Softimage PIC": {"\x53\x80\xf6\x34ftyp\x00\x00\x00\x00", false},
		"PNM":           {"P6\n#ftyp\n80", false},
		"short":         {"\x00\x00\x00\x20ft", false},
		"nothing":       {"", false},
	} {
		text := jsonscan.Value{Kind: jsonscan.String, Raw: []byte(`"` + b64([]byte(tt.head)) + `"`)}
		if err := new(media).film("messages", text.TextReader(), len(text.Raw)-2); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
