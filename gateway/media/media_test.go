package media

import (
	"bytes"
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
	"reveille/testenv/mediafile"
)

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

// TestPNG: a file's data is unpacked as far as its size needs, and no further.
func TestPNG(t *testing.T) {
	needs := func(width, height, bits int) int { return ((width*bits+7)/8 + 1) * height }
	for _, tt := range []struct {
		depth, colour, interlace byte
		bytes                    int
		ok                       bool
	}{
		{8, 2, 0, needs(100, 50, 24), true}, {1, 0, 0, needs(100, 50, 1), true}, {16, 6, 0, needs(100, 50, 64), true}, {8, 4, 0, needs(100, 50, 16), true},
		{8, 2, 1, needs(100, 50, 24) + 100, true}, {1, 0, 1, needs(100, 50, 1) + 150, true}, // more rows, each filled up
		{8, 2, 0, 16 << 20, false}, {1, 0, 0, needs(100, 50, 24), false}, {8, 2, 1, 2 * needs(100, 50, 24), false},
	} {
		var m Check
		file := mediafile.PNG(100, 50, tt.depth, tt.colour, tt.interlace, make([]byte, tt.bytes))
		if err := m.PictureFile("file", bytes.NewReader(file), len(file)); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	whole := mediafile.PNG(100, 50, 8, 2, 0, make([]byte, needs(100, 50, 24)))
	for n := range whole {
		var m Check
		if err := m.PictureFile("file", bytes.NewReader(whole[:n]), n); err == nil && n < len(whole)-32 {
			t.Errorf("a file cut at %d of %d bytes passes", n, len(whole))
		}
	}
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
	second := bytes.Replace(mediafile.JPEG(0xC2, 640, 2), []byte("\xff\xd9"), []byte("\xff\xc2\x00\x0b\x08\x09\x09\x09\x09\x01\x01\x11\x00\xff\xd9"), 1)
	for name, tt := range map[string]struct {
		files [][]byte
		ok    bool
	}{
		"JPEG":                               {[][]byte{sequential.Bytes()}, true},
		"JPEG, cut short":                    {[][]byte{sequential.Bytes()[:700]}, true},
		"JPEG, grey":                         {[][]byte{mediafile.JPEG(0xC0, 6320, 1)}, true},
		"JPEG, grey, the component twice":    {[][]byte{mediafile.JPEG(0xC0, 640, 2)}, false},
		"JPEG, progressive":                  {[][]byte{mediafile.JPEG(0xC2, 4400, 20)}, true},
		"JPEG, progressive, small":           {[][]byte{mediafile.JPEG(0xC2, 640, 100)}, true},
		"JPEG, progressive, too many scans":  {[][]byte{mediafile.JPEG(0xC2, 64, 101)}, false},
		"JPEG, progressive, large and many":  {[][]byte{mediafile.JPEG(0xC2, 6320, 40)}, false},
		"JPEG, progressive, many together":   {[][]byte{mediafile.JPEG(0xC2, 3500, 60), mediafile.JPEG(0xC2, 3500, 60)}, false},
		"JPEG, two frames":                   {[][]byte{second}, false},
		"JPEG, arithmetic coding":            {[][]byte{mediafile.JPEG(0xCA, 640, 1)}, false},
		"GIF":                                {[][]byte{animated.Bytes()}, true},
		"GIF, cut short":                     {[][]byte{animated.Bytes()[:3000]}, true},
		"GIF, one colour":                    {[][]byte{mediafile.GIF(900, 900*900)}, true},
		"GIF, pixels behind its last one":    {[][]byte{mediafile.GIF(10, 400_000)}, false},
		"GIF, a code that is not yet known":  {[][]byte{append(mediafile.GIF(10, 0)[:19+9+11], "\x01\x3c\x00\x3b"...)}, false},
		"GIF, a graphic control":             {[][]byte{withControl(mediafile.GIF(10, 100), "\x04\x00\x00\x00\x00\x00")}, true},
		"GIF, one of another size":           {[][]byte{withControl(mediafile.GIF(10, 100), "\x03\x00\x00\x00\x00")}, false},
		"PNG, 16 bits":                       {[][]byte{deepPNG(4400)}, true},
		"PNG, 16 bits, too large":            {[][]byte{deepPNG(4500)}, false},
		"JPEG, progressive, too large":       {[][]byte{mediafile.JPEG(0xC2, 4500, 2)}, false},
		"GIF, no frame before its end":       {[][]byte{append(mediafile.GIF(10, 100)[:19], 0x3B)}, true},
		"GIF, something else than a segment": {[][]byte{append(mediafile.GIF(10, 100)[:19], 0x55, 0)}, false},
	} {
		var m Check
		var err error
		for _, file := range tt.files {
			if e := m.PictureFile("file", bytes.NewReader(file), len(file)); e != nil {
				err = e
			}
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// floatFile is a WAV file of floats of one or two words, a second of silence with the values at its end.
func floatFile(words uint32, values ...float32) []byte {
	file := bytes.Replace(mediafile.WAV(8_000*4*int(words), [3]uint32{8_000, 4 * words, 32 * words}), []byte("\x10\x00\x00\x00\x01\x00"), []byte("\x10\x00\x00\x00\x03\x00"), 1)
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
		"MP3":                                  {mediafile.MP3("", "", 5), true, true},
		"MP3, true":                            {mediafile.MP3("", frames("Xing", 50), 50), true, true},
		"MP3, true, tagged":                    {mediafile.MP3(id3+id3, frames("Info", 50), 50), true, true},
		"MP3, tells nothing":                   {mediafile.MP3("", "Xing\x00\x00\x00\x0e\x7f\xff\xff\xff", 3), false, false},
		"MP3, no frame around the mark":        {mediafile.MP3("", "x"+frames("Xing", 1e6), 3), true, true},
		"MP3, lie":                             {mediafile.MP3("", frames("Xing", 300_000), 3), false, false},
		"MP3, lie, Info":                       {mediafile.MP3("", frames("Info", 300_000), 3), false, false},
		"MP3, lie, tagged":                     {mediafile.MP3(id3, frames("Xing", 300_000), 3), false, false},
		"MP3, lie, behind a frame":             {mediafile.MP3(string(mediafile.MP3("", "", 2)), frames("Xing", 300_000), 3), false, false},
		"MP3, lie, far behind":                 {mediafile.MP3("\xff\xe0"+far, frames("Xing", 300_000), 3), false, false},
		"MP3, too long":                        {mediafile.MP3("", frames("Xing", 60_000_000), 90_000), false, false},
		"MP3, a tag longer than the file":      {mediafile.MP3("ID3\x04\x00\x00\x7f\x7f\x7f\x7f", "", 3), false, false},
		"MP3, tags without end":                {[]byte(strings.Repeat(id3, 17)), false, false},
		"FLAC":                                 {mediafile.FLAC(16_000, 1, 160_000, 9_000), false, true},
		"FLAC, silence":                        {mediafile.FLAC(16_000, 1, 16_000*3600, 20_000), false, false},
		"FLAC, tagged":                         {append([]byte(id3), mediafile.FLAC(16_000, 1, 160_000, 9_000)...), false, true},
		"FLAC, lie":                            {mediafile.FLAC(384_000, 8, 7200*384_000, 243), false, false},
		"FLAC, lie, tagged":                    {append([]byte(id3), mediafile.FLAC(384_000, 8, 7200*384_000, 243)...), false, false},
		"FLAC, samples of all channels":        {mediafile.FLAC(48_000, 8, 13_000_000, 9_000), false, false},
		"WAV":                                  {mediafile.WAV(8_000, [3]uint32{8_000, 1, 8}), true, true},
		"WAV, two formats":                     {mediafile.WAV(8_000, [3]uint32{16_000, 2, 16}, [3]uint32{1, 1, 8}), false, false},
		"WAV, a frame larger than its samples": {mediafile.WAV(9_000_000, [3]uint32{1_000, 65_535, 8}), false, false},
		"WAV, an MP3 file behind":              {mediafile.MP3(string(mediafile.WAV(50, [3]uint32{8_000, 1, 8})), frames("Xing", 300_000), 3), true, true},
		"WAV, one sample":                      {mediafile.OneSample, false, false},
		"WAV, ADPCM":                           {bytes.Replace(mediafile.WAV(8_000, [3]uint32{8_000, 1, 8}), []byte("\x10\x00\x00\x00\x01\x00"), []byte("\x10\x00\x00\x00\x11\x00"), 1), false, false},
		"WAV, data announced as less":          {bytes.Replace(mediafile.WAV(8_000, [3]uint32{8_000, 1, 8}), []byte("data\xff\xff\xff\xff"), []byte("data\x01\x00\x00\x00"), 1), false, false},
		"MP3, less than decoders leave out":    {mediafile.MP3("", frames("Info", 7), 50), false, false},
		"MP3, one frame":                       {mediafile.MP3("", "", 0), false, true},
		"MP3, frames without a bit rate":       {bytes.Repeat([]byte("\xff\xf5\x08\xc0"), 1000), false, false},
		"MP3, these inside others":             {append(mediafile.MP3("", "", 50), bytes.Repeat([]byte("\xff\xf5\x08\xc0\x00\x00\x00"), 20)...), false, false},
		"MP3, half an hour and more":           {mediafile.MP3("", "", 69_000), false, true},
		"MP3, of a low rate first":             {append(bytes.Repeat(append([]byte("\xff\xe3\x88\xc4"), make([]byte, 572)...), 3), mediafile.MP3("", "", 20_000)...), false, true},
		"WAV, floats":                          {floatFile(1, 0.5, -maxSample), true, true},
		"WAV, a float that is no number":       {floatFile(1, float32(math.NaN())), false, false},
		"WAV, an infinite float":               {floatFile(1, 0, float32(math.Inf(-1))), false, false},
		"WAV, a large float":                   {floatFile(1, 3.3e38), false, false},
		"WAV, floats of 64 bits":               {floatFile(2, 1), true, true},
		"WAV, a large float of 64 bits":        {floatFile(2, 17), false, false},
		"WAV, a format of odd length":          {bytes.Replace(bytes.Replace(mediafile.WAV(8_000, [3]uint32{8_000, 1, 8}), []byte("fmt \x10"), []byte("fmt \x13"), 1), []byte("data"), []byte("\x01\x00\x00\x00\x00data"), 1), false, false},
		"WAV, no data":                         {mediafile.WAV(0, [3]uint32{8_000, 1, 8})[:36], false, false},
		"Ogg":                                  {oggFile(48_000, 4_800_000, 9_000), false, true},
		"Ogg, no position":                     {oggFile(48_000, 1<<64-1, 9_000), false, true},
		"Ogg, lie":                             {oggFile(48_000, 48_000*7200, 9_000), false, false},
		"Ogg, lie, tagged":                     {append([]byte(id3), oggFile(48_000, 48_000*7200, 9_000)...), false, false},
		"Ogg, too long":                        {oggFile(8_000, 8_000*7300, 90_000), false, false},
		"Ogg, a low rate":                      {oggFile(1, 6_000, 9_000), false, false},
		"AIFF":                                 {[]byte("FORM\x00\x00\x00\x20AIFF" + far), false, false},
		"another, with MP3 frames":             {mediafile.MP3("anything", frames("Xing", 300_000), 3), false, false},
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
	var m Check
	hour := mediafile.FLAC(16_000, 1, 16_000*3600, 1_800_000)
	for i, ok := range []bool{true, true, false} {
		if err := m.Upload("file", bytes.NewReader(hour), len(hour)); (err == nil) != ok {
			t.Errorf("hour %d: %v", i+1, err)
		}
	}
}

// soundError checks a sound in a form, or in a message.
func soundError(file []byte, upload bool) error {
	var err *api.Error
	if upload {
		err = new(Check).Upload("file", bytes.NewReader(file), len(file))
	} else {
		text := jsonscan.Value{Kind: jsonscan.String, Raw: []byte(`"` + b64(file) + `"`)}
		err = new(Check).Sound("data", text.TextReader(), len(text.Raw))
	}
	if err == nil {
		return nil
	}
	return err
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
		if err := new(Check).Video("messages", text.TextReader(), len(text.Raw)-2); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
