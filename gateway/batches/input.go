package batches

import (
	"bufio"
	"bytes"
	"context"
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

// lines reads an input file until ctx ends.
type lines struct {
	ctx    context.Context
	scan   *bufio.Scanner
	number int
}

func newLines(ctx context.Context, r io.Reader) *lines {
	l := &lines{ctx: ctx, scan: bufio.NewScanner(r)}
	l.scan.Buffer(make([]byte, 64<<10), MaxLine)
	return l
}

var lineKeys = []string{"custom_id", "method", "url", "body"}

// next returns the next line that is not blank, io.EOF at the end, or a lineError.
func (l *lines) next() (out line, err error) {
	for l.ctx.Err() == nil && l.scan.Scan() {
		text := l.scan.Bytes()
		if l.number++; l.number == 1 {
			text = jsonscan.TrimMark(text)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			return l.parse(text)
		}
	}
	switch err := l.scan.Err(); {
	case l.ctx.Err() != nil:
		return out, context.Cause(l.ctx)
	case errors.Is(err, bufio.ErrTooLong):
		return out, newLineError("line_too_long", fmt.Sprintf("This line has more than %d bytes.", MaxLine), "", l.number+1)
	case err != nil:
		return out, err
	}
	return out, io.EOF
}

func (l *lines) parse(text []byte) (line, error) {
	var values [4]jsonscan.Value
	out := line{number: l.number}
	if err := jsonscan.Scan(text, lineKeys, values[:]); err != nil {
		return out, newLineError("invalid_json_line", "This line is not a JSON object.", "", l.number)
	}
	for i, want := range []jsonscan.Kind{jsonscan.String, jsonscan.String, jsonscan.String, jsonscan.Object} {
		switch v := values[i]; {
		case !v.Set():
			return out, newLineError("missing_required_parameter", "'"+lineKeys[i]+"' is missing.", lineKeys[i], l.number)
		case v.Kind != want:
			return out, newLineError("invalid_type", fmt.Sprintf("'%s' must be a JSON %s.", lineKeys[i], want), lineKeys[i], l.number)
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
// reading, or the cause of ctx's end. Its memory is a number of 8 bytes for each line.
func (b *stored) validate(ctx context.Context, input io.Reader) error {
	seed, seen := maphash.MakeSeed(), map[uint64]struct{}{}
	b.Models, b.Errors, b.RequestCounts = nil, nil, counts{}
	for in := newLines(ctx, input); ; {
		l, err := in.next()
		switch {
		case err == nil:
			b.RequestCounts.Total++
			err = b.check(l, maphash.Bytes(seed, l.customID), seen)
		case err == io.EOF && b.RequestCounts.Total == 0 && b.Errors == nil:
			b.fail(newLineError("empty_file", "The input file has no lines.", "", 0))
			return nil
		case err == io.EOF:
			return nil
		}
		if bad, is := errors.AsType[lineError](err); is {
			if b.fail(bad) || bad.Code == "line_too_long" || bad.Code == "too_many_lines" {
				return nil
			}
		} else if err != nil {
			return err
		}
	}
}

// check counts a line, or returns its lineError. seen has the hashes of the ids before it.
func (b *stored) check(l line, id uint64, seen map[uint64]struct{}) error {
	bad := func(code, message, param string) error { return newLineError(code, message, param, l.number) }
	_, duplicate := seen[id]
	seen[id] = struct{}{}
	i := slices.IndexFunc(b.Models, func(m modelLines) bool { return m.Model == l.model })
	switch {
	case b.RequestCounts.Total > MaxLines:
		return bad("too_many_lines", fmt.Sprintf("The input file has more than %d lines.", MaxLines), "")
	case duplicate:
		return bad("duplicate_custom_id", "Another line has the same 'custom_id'.", "custom_id")
	case len(l.customID) == 0 || len(l.customID) > maxCustomID:
		return bad("invalid_custom_id", fmt.Sprintf("'custom_id' must have 1 to %d bytes.", maxCustomID), "custom_id")
	case string(l.method) != "POST":
		return bad("invalid_method", "'method' must be POST.", "method")
	case string(l.url) != b.Endpoint:
		return bad("mismatched_endpoint", "'url' must be the batch's endpoint, "+b.Endpoint+".", "url")
	case len(l.model) > maxModelName:
		return bad("invalid_model", "The name of the model is too long.", "body.model")
	case i >= 0:
		b.Models[i].Lines++
	case len(b.Models) == maxModels:
		return bad("too_many_models", fmt.Sprintf("The lines name more than %d models.", maxModels), "body.model")
	default:
		b.Models = append(b.Models, modelLines{l.model, 1})
	}
	return nil
}
