package responses

import (
	"reveille/infra/jsonscan"
)

var (
	partMembers = set("type", "text", "refusal", "image_url", "detail", "input_audio")

	// textParts are the types of parts that are texts, by where their text is.
	textParts = map[string]string{
		"input_text": "text", "output_text": "text", "text": "text", "summary_text": "text", "reasoning_text": "text", "refusal": "refusal",
	}
)

// eachPart calls fn at each part of a list.
func eachPart(v jsonscan.Value, fn func(kind string, part object) error) (err error) {
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		if w.Kind() != jsonscan.Object {
			err = refuse("A content part must be an object.")
			return false
		}
		part := read(w.Raw().Raw, partMembers)
		kind := part["type"].String()
		if text, is := textParts[kind]; is {
			if part[text].Kind != jsonscan.String {
				err = refuse("A content part of type '%s' needs the text '%s'.", kind, text)
				return false
			}
			part["text"], kind = part[text], "text"
		}
		err = fn(kind, part)
		return err == nil
	})
	return err
}

// appendTexts appends a text, or the texts of a list of parts, without quotes; between stands between them, as it is in JSON.
func appendTexts(dst []byte, v jsonscan.Value, between string) ([]byte, error) {
	switch v.Kind {
	case jsonscan.String:
		return append(dst, inner(v)...), nil
	case jsonscan.Array:
	default:
		return nil, noContent()
	}
	n := 0
	err := eachPart(v, func(kind string, part object) error {
		if kind != "text" {
			return refuse("The content of system and developer messages, and of reasoning, is text.")
		}
		if n++; n > 1 {
			dst = append(dst, between...)
		}
		dst = append(dst, inner(part["text"])...)
		return nil
	})
	return dst, err
}

func noContent() error { return refuse("An item's content must be a text or a list of parts.") }

// appendContent appends the member content of a message: a text, or a list of parts if it has not just one text.
func appendContent(dst []byte, v jsonscan.Value) ([]byte, error) {
	dst = append(dst, `"content":`...)
	switch v.Kind {
	case jsonscan.String:
		return append(dst, v.Raw...), nil
	case jsonscan.Array:
	default:
		return nil, noContent()
	}
	from := len(dst)
	dst = append(dst, '[')
	n, only := 0, jsonscan.Value{}
	err := eachPart(v, func(kind string, part object) error {
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		only = part["text"]
		var err error
		dst, err = appendPart(dst, kind, part)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return append(dst[:from], `""`...), nil
	case n == 1 && only.Kind == jsonscan.String:
		return append(dst[:from], only.Raw...), nil
	}
	return append(dst, ']'), nil
}

func appendPart(dst []byte, kind string, part object) ([]byte, error) {
	switch kind {
	case "text":
		dst = append(append(dst, `{"type":"text","text":`...), part["text"].Raw...)
		return append(dst, '}'), nil
	case "input_image":
		url := part["image_url"]
		if url.Kind != jsonscan.String {
			return nil, refuse("An 'input_image' needs an 'image_url' that is a data: URL.")
		}
		dst = append(append(dst, `{"type":"image_url","image_url":{"url":`...), url.Raw...)
		if v := part["detail"]; v.Kind == jsonscan.String {
			dst = member(dst, "detail", v)
		}
		return append(dst, `}}`...), nil
	case "input_audio":
		if v := part["input_audio"]; v.Kind == jsonscan.Object {
			return append(member(append(dst, `{"type":"input_audio"`...), "input_audio", v), '}'), nil
		}
		return nil, refuse("An 'input_audio' needs an object of the same name.")
	case "input_file":
		return nil, refuse("Files are not supported: send text, pictures or sounds.")
	}
	return nil, refuse("A content part's type is not supported: use input_text, output_text, refusal, input_image or input_audio.")
}
