package batches

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"

	"reveille/infra/jsonscan"
)

// MaxLine bounds a line of an input file, in bytes.
const MaxLine = 8 << 20

// line is a line of an input file. It aliases the reader's buffer.
type line struct {
	number   int // in the file, from 1
	customID []byte
	method   []byte
	url      []byte
	body     []byte // a JSON object
	model    string // "" if the body names none
}

// lines reads an input file.
type lines struct {
	scan   *bufio.Scanner
	number int
}

func newLines(r io.Reader) *lines {
	l := &lines{scan: bufio.NewScanner(r)}
	l.scan.Buffer(make([]byte, 64<<10), MaxLine)
	return l
}

// formatError is why a line is malformed.
type formatError struct {
	line        int
	code, param string
	message     string
}

// Error implements error.
func (e *formatError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

var lineKeys = []string{"custom_id", "method", "url", "body"}

// next returns the next line that is not blank, io.EOF at the end, or a *formatError.
func (l *lines) next() (out line, err error) {
	for l.scan.Scan() {
		text := l.scan.Bytes()
		if l.number++; l.number == 1 {
			text = jsonscan.TrimMark(text)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			return l.parse(text)
		}
	}
	switch err := l.scan.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return out, &formatError{l.number + 1, "line_too_long", "", fmt.Sprintf("This line has more than %d bytes.", MaxLine)}
	case err != nil:
		return out, err
	}
	return out, io.EOF
}

func (l *lines) parse(text []byte) (line, error) {
	var values [4]jsonscan.Value
	out := line{number: l.number}
	if err := jsonscan.Scan(text, lineKeys, values[:]); err != nil {
		return out, &formatError{l.number, "invalid_json_line", "", "This line is not a JSON object."}
	}
	for i, want := range []jsonscan.Kind{jsonscan.String, jsonscan.String, jsonscan.String, jsonscan.Object} {
		switch v := values[i]; {
		case !v.Set():
			return out, &formatError{l.number, "missing_required_parameter", lineKeys[i], "'" + lineKeys[i] + "' is missing."}
		case v.Kind != want:
			return out, &formatError{l.number, "invalid_type", lineKeys[i], fmt.Sprintf("'%s' must be a JSON %s.", lineKeys[i], want)}
		}
	}
	out.customID, out.method, out.url, out.body = values[0].Bytes(), values[1].Bytes(), values[2].Bytes(), values[3].Raw
	var model [1]jsonscan.Value
	if jsonscan.Scan(out.body, []string{"model"}, model[:]) == nil && model[0].Kind == jsonscan.String {
		out.model = model[0].String()
	}
	return out, nil
}

const (
	maxCustomID  = 512
	maxModelName = 256
)

// validate reads the whole input of a batch, and either counts its lines or fails the batch. The error is one of
// reading. Its memory is a number of 8 bytes for each line.
func (b *stored) validate(input io.Reader) error {
	seed, seen := maphash.MakeSeed(), map[uint64]struct{}{}
	b.Models, b.Errors, b.RequestCounts = nil, nil, counts{}
	in := newLines(input)
	for {
		l, err := in.next()
		var bad *formatError
		switch {
		case err == io.EOF:
			if b.RequestCounts.Total == 0 && b.Errors == nil {
				b.fail("empty_file", "The input file has no lines.", "", 0)
			}
			return nil
		case errors.As(err, &bad):
			if b.fail(bad.code, bad.message, bad.param, bad.line); bad.code == "line_too_long" || len(b.Errors.Data) >= maxErrors {
				return nil
			}
			continue
		case err != nil:
			return err
		}
		if b.RequestCounts.Total++; b.RequestCounts.Total > MaxLines {
			b.fail("too_many_lines", fmt.Sprintf("The input file has more than %d lines.", MaxLines), "", 0)
			return nil
		}
		hash := maphash.Bytes(seed, l.customID)
		_, duplicate := seen[hash]
		seen[hash] = struct{}{}
		i := slices.IndexFunc(b.Models, func(m modelLines) bool { return m.Model == l.model })
		switch {
		case duplicate:
			b.fail("duplicate_custom_id", "Another line has the same 'custom_id'.", "custom_id", l.number)
		case len(l.customID) == 0 || len(l.customID) > maxCustomID:
			b.fail("invalid_custom_id", fmt.Sprintf("'custom_id' must have 1 to %d bytes.", maxCustomID), "custom_id", l.number)
		case string(l.method) != "POST":
			b.fail("invalid_method", "'method' must be POST.", "method", l.number)
		case string(l.url) != b.Endpoint:
			b.fail("mismatched_endpoint", "'url' must be the batch's endpoint, "+b.Endpoint+".", "url", l.number)
		case len(l.model) > maxModelName:
			b.fail("invalid_model", "The name of the model is too long.", "body.model", l.number)
		case i >= 0:
			b.Models[i].Lines++
		case len(b.Models) == maxModels:
			b.fail("too_many_models", fmt.Sprintf("The lines name more than %d models.", maxModels), "body.model", l.number)
		default:
			b.Models = append(b.Models, modelLines{l.model, 1})
		}
		if b.Errors != nil && len(b.Errors.Data) >= maxErrors {
			return nil
		}
	}
}
