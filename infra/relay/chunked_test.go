package relay

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httputil"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// decodeIn feeds raw in pieces whose sizes come from cut.
func decodeIn(raw []byte, cut func(left int) int) (data []byte, used int, d chunkDecoder, err error) {
	for used < len(raw) && d.state != chunkDone {
		piece := bytes.Clone(raw[used : used+cut(len(raw)-used)])
		b, n, err := d.decode(piece)
		data = append(data, b...)
		used += n
		if err != nil {
			return data, used, d, err
		}
		if n < len(piece) {
			break
		}
	}
	return data, used, d, nil
}

func whole(left int) int { return left }

func TestChunksSplitAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var raw, want []byte
		for range rapid.IntRange(0, 8).Draw(t, "chunks") {
			data := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "data")
			want = append(want, data...)
			end := rapid.SampledFrom([]string{"\r\n", "\n"}).Draw(t, "line end")
			raw = fmt.Appendf(raw, rapid.SampledFrom([]string{"%x%s", "%X%s", "000%x%s", "%x;a=b%s", "%x ; a%s", "%x  %s"}).Draw(t, "size"), len(data), end)
			raw = append(append(raw, data...), end...)
		}
		raw = append(raw, rapid.SampledFrom([]string{"0\r\n\r\n", "00;x\r\n\r\n", "0\r\nA: b\nC: d\r\n\r\n", "0\n\n"}).Draw(t, "end")...)
		behind := rapid.SampledFrom([]string{"", "HTTP/1.1 200 OK"}).Draw(t, "behind")
		raw = append(raw, behind...)
		got, used, d, err := decodeIn(raw, func(left int) int { return rapid.IntRange(1, left).Draw(t, "cut") })
		if err != nil || d.state != chunkDone || used != len(raw)-len(behind) || !bytes.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q, used %d, state %d, %v", raw, got, want, used, d.state, err)
		}
	})
}

func TestBadChunks(t *testing.T) {
	for name, raw := range map[string]string{
		"LF ends data":      "3\r\nabc\n0\r\n\r\n",
		"CRLF ends data":    "3\nabc\r\n0\r\n\r\n",
		"no digit":          "\r\n",
		"blank before":      " 3\r\nabc\r\n",
		"hex prefix":        "0x3\r\nabc\r\n",
		"negative":          "-3\r\n",
		"CR only":           "3\rabc\r",
		"LF in extension":   "3;a\nb\r\nabc\r\n",
		"NUL in extension":  "3;a\x00\r\nabc\r\n",
		"long extension":    "3;" + strings.Repeat("a", maxChunkLine) + "\r\n",
		"many zeros":        strings.Repeat("0", maxChunkLine+1),
		"too large":         "4000000000000000\r\n",
		"too much data":     "3\r\nabcd\r\n",
		"too little data":   "3\r\nab\r\n0\r\n\r\n",
		"too many trailers": "0\r\n" + strings.Repeat("A: b\r\n", maxTrailers),
	} {
		if _, _, _, err := decodeIn([]byte(raw), whole); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The result must not depend on how the stream is cut, and a lenient decoder must read what we accept in the same way.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: x\r\n\r\nHTTP/1.1"), uint8(2))
	f.Add([]byte("fffffffffffffff\r\n"), uint8(7))
	f.Fuzz(func(t *testing.T, raw []byte, n uint8) {
		a, usedA, dA, errA := decodeIn(raw, whole)
		b, usedB, dB, errB := decodeIn(raw, func(left int) int { return min(int(n)+1, left) })
		if !bytes.Equal(a, b) || usedA != usedB || (errA == nil) != (errB == nil) || errA == nil && dA != dB {
			t.Fatalf("whole: %q %d %v; cut: %q %d %v", a, usedA, errA, b, usedB, errB)
		}
		if errA == nil && dA.state == chunkDone {
			std, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(raw)))
			if err == nil && !bytes.Equal(a, std) {
				t.Fatalf("ours %q, the library's %q", a, std)
			}
		}
	})
}
