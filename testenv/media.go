package testenv

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
)

// Picture is a PNG of coloured blocks, another one for each seed.
func Picture(seed uint64, width, height int) []byte {
	const block = 8 // pixels
	r := rand.New(rand.NewPCG(seed, 1))
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := 0; y < height; y += block {
		for x := 0; x < width; x += block {
			c := color.RGBA{uint8(r.Uint32()), uint8(r.Uint32()), uint8(r.Uint32()), 255}
			for dy := range block {
				for dx := range block {
					img.SetRGBA(x+dx, y+dy, c)
				}
			}
		}
	}
	var b bytes.Buffer
	_ = png.Encode(&b, img) // a buffer takes everything
	return b.Bytes()
}

// SampleRate is that of sounds, and of the audio tower of [ModelFiles].
const SampleRate = 16_000

// Sound is a WAV file of a rising tone, another one for each seed, and the samples that an engine makes of it: 32-bit
// floats in little-endian.
func Sound(seed uint64, seconds int) (wav, samples []byte) {
	n := seconds * SampleRate
	add := func(numbers ...any) {
		for _, v := range numbers {
			wav, _ = binary.Append(wav, binary.LittleEndian, v) // numbers of fixed size always append
		}
	}
	wav = append(wav, "RIFF"...)
	add(uint32(36 + 2*n))
	wav = append(wav, "WAVEfmt "...)
	add(uint32(16), uint16(1), uint16(1), uint32(SampleRate), uint32(2*SampleRate), uint16(2), uint16(16)) // PCM, mono, 16 bits
	wav = append(wav, "data"...)
	add(uint32(2 * n))
	for i := range n {
		at := float64(i) / SampleRate
		v := int16(8000 * math.Sin(2*math.Pi*(200+50*float64(seed)+20*at)*at))
		wav = binary.LittleEndian.AppendUint16(wav, uint16(v))
		samples = binary.LittleEndian.AppendUint32(samples, math.Float32bits(float32(v)/32768))
	}
	return wav, samples
}

// MediaPart is the part of a chat message that holds a [Picture] or the WAV file of a [Sound].
func MediaPart(data []byte) map[string]any {
	text := base64.StdEncoding.EncodeToString(data)
	if bytes.HasPrefix(data, []byte("RIFF")) {
		return map[string]any{"type": "input_audio", "input_audio": map[string]any{"data": text, "format": "wav"}}
	}
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:image/png;base64," + text}}
}
