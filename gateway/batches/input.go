package batches

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
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

// lines yields the lines of an input file that are not blank, until ctx ends. An error is the lineError of one line, or
// ends the lines: one of reading, or the cause of ctx's end.
func lines(ctx context.Context, r io.Reader) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		scan := bufio.NewScanner(r)
		scan.Buffer(make([]byte, 64<<10), MaxLine)
		number := 0
		for ctx.Err() == nil && scan.Scan() {
			text := scan.Bytes()
			if number++; number == 1 {
				text = jsonscan.TrimMark(text)
			}
			if text = bytes.TrimSpace(text); len(text) > 0 && !yield(parseLine(text, number)) {
				return
			}
		}
		err := scan.Err()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if errors.Is(err, bufio.ErrTooLong) {
			err = lineError{Code: "line_too_long", Message: fmt.Sprintf("This line has more than %d bytes.", MaxLine)}
		}
		if err != nil {
			yield(line{number: number + 1}, err)
		}
	}
}

var lineKeys = []string{"custom_id", "method", "url", "body"}

func parseLine(text []byte, number int) (line, error) {
	var values [4]jsonscan.Value
	out := line{number: number}
	if err := jsonscan.Scan(text, lineKeys, values[:]); err != nil {
		return out, lineError{Code: "invalid_json_line", Message: "This line is not a JSON object."}
	}
	for i, want := range []jsonscan.Kind{jsonscan.String, jsonscan.String, jsonscan.String, jsonscan.Object} {
		switch v := values[i]; {
		case !v.Set():
			return out, lineError{Code: "missing_required_parameter", Message: "'" + lineKeys[i] + "' is missing.", Param: &lineKeys[i]}
		case v.Kind != want:
			return out, lineError{Code: "invalid_type", Message: fmt.Sprintf("'%s' must be a JSON %s.", lineKeys[i], want), Param: &lineKeys[i]}
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
	for l, err := range lines(ctx, input) {
		if err == nil {
			b.RequestCounts.Total++
			err = b.check(l, maphash.Bytes(seed, l.customID), seen)
		}
		if bad, is := errors.AsType[lineError](err); is {
			bad.Line = new(l.number)
			if b.fail(bad) || b.RequestCounts.Total > MaxLines {
				return nil
			}
		} else if err != nil {
			return err
		}
	}
	if b.RequestCounts.Total == 0 && b.Errors == nil {
		b.fail(lineError{Code: "empty_file", Message: "The input file has no lines."})
	}
	return nil
}

// check counts a line, or returns its lineError. seen has the hashes of the ids before it.
func (b *stored) check(l line, id uint64, seen map[uint64]struct{}) error {
	_, duplicate := seen[id]
	seen[id] = struct{}{}
	i := slices.IndexFunc(b.Models, func(m modelLines) bool { return m.Model == l.model })
	switch {
	case b.RequestCounts.Total > MaxLines:
		return lineError{Code: "too_many_lines", Message: fmt.Sprintf("The input file has more than %d lines.", MaxLines)}
	case duplicate:
		return lineError{Code: "duplicate_custom_id", Message: "Another line has the same 'custom_id'.", Param: new("custom_id")}
	case len(l.customID) == 0 || len(l.customID) > maxCustomID:
		return lineError{Code: "invalid_custom_id", Message: fmt.Sprintf("'custom_id' must have 1 to %d bytes.", maxCustomID), Param: new("custom_id")}
	case string(l.method) != "POST":
		return lineError{Code: "invalid_method", Message: "'method' must be POST.", Param: new("method")}
	case string(l.url) != b.Endpoint:
		return lineError{Code: "mismatched_endpoint", Message: "'url' must be the batch's endpoint, " + b.Endpoint + ".", Param: new("url")}
	case len(l.model) > maxModelName:
		return lineError{Code: "invalid_model", Message: "The name of the model is too long.", Param: new("body.model")}
	case i >= 0:
		b.Models[i].Lines++
	case len(b.Models) == maxModels:
		return lineError{Code: "too_many_models", Message: fmt.Sprintf("The lines name more than %d models.", maxModels), Param: new("body.model")}
	default:
		b.Models = append(b.Models, modelLines{l.model, 1})
	}
	return nil
}
