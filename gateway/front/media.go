package front

import (
	"bytes"
	"encoding/json"

	"reveille/gateway/wire"
)

// mediaMarks are texts one of which every body with a media URL holds: the ends of the keys of such parts, or an escape
// that can hide a key.
var mediaMarks = [...][]byte{[]byte(`_url"`), []byte(`"source"`), []byte(`\u`)}

// remoteMedia refuses messages (a valid JSON value) that ask for media from elsewhere: an engine would fetch it from
// inside the network, or read a file. Media comes in data: URLs.
//
// The places an engine looks at are members whose names end in _url (image_url, file_url, …), as a text or an object
// with a url, and the url of an Anthropic source. URLs elsewhere are texts that no engine follows: citations, and what
// a model handed to a tool (input).
func remoteMedia(messages []byte) error {
	suspect := false
	for _, m := range mediaMarks {
		suspect = suspect || bytes.Contains(messages, m)
	}
	if !suspect {
		return nil
	}
	w := mediaWalk{b: messages}
	if w.value(notMedia); w.found {
		return wire.New(wire.RemoteMediaDisabled, "Media must be sent as a data: URL; fetching it from elsewhere is not allowed here.").With("messages")
	}
	return nil
}

// mediaPlace says what a value stands for.
type mediaPlace uint8

const (
	notMedia    mediaPlace = iota
	mediaURL               // a URL, or an object that holds one
	mediaSource            // an object that may hold a URL
	toolInput              // nothing in it is media
)

// mediaWalk walks a JSON value that is known to be valid.
type mediaWalk struct {
	b     []byte
	i     int
	found bool
}

func (w *mediaWalk) value(p mediaPlace) {
	w.skip(" \t\r\n")
	switch w.peek() {
	case '"':
		if text := w.text(); p == mediaURL && !bytes.HasPrefix(text, []byte("data:")) {
			w.found = true
		}
	case '{':
		w.each('}', func() { w.member(p) })
	case '[':
		w.each(']', func() { w.value(p) })
	default:
		for w.i < len(w.b) && bytes.IndexByte([]byte(",]} \t\r\n"), w.b[w.i]) < 0 {
			w.i++
		}
	}
}

// each calls fn at every item up to the closing byte.
func (w *mediaWalk) each(end byte, fn func()) {
	w.i++
	for w.skip(" \t\r\n,"); w.i < len(w.b) && w.b[w.i] != end && !w.found; w.skip(" \t\r\n,") {
		fn()
	}
	w.i++
}

// member walks one member of an object that stands at p.
func (w *mediaWalk) member(p mediaPlace) {
	key := w.text()
	if bytes.IndexByte(key, '\\') >= 0 {
		var plain string
		if json.Unmarshal(append(append([]byte{'"'}, key...), '"'), &plain) == nil {
			key = []byte(plain)
		}
	}
	w.skip(" \t\r\n:")
	switch {
	case p == toolInput:
		w.value(toolInput)
	case p != notMedia && string(key) == "url", bytes.HasSuffix(key, []byte("_url")):
		w.value(mediaURL)
	case string(key) == "source":
		w.value(mediaSource)
	case string(key) == "input":
		w.value(toolInput)
	default:
		w.value(notMedia)
	}
}

// text takes a string and returns what stands between its quotes.
func (w *mediaWalk) text() []byte {
	w.i++
	for from := w.i; ; {
		n := bytes.IndexByte(w.b[min(w.i, len(w.b)):], '"')
		if n < 0 {
			w.i = len(w.b)
			return nil
		}
		w.i += n + 1
		text := w.b[from : w.i-1]
		if escapes := len(text) - len(bytes.TrimRight(text, `\`)); escapes%2 == 0 {
			return text
		}
	}
}

func (w *mediaWalk) peek() byte {
	if w.i < len(w.b) {
		return w.b[w.i]
	}
	return 0
}

func (w *mediaWalk) skip(set string) {
	for w.i < len(w.b) && bytes.IndexByte([]byte(set), w.b[w.i]) >= 0 {
		w.i++
	}
}
