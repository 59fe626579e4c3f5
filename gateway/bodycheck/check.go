// Package bodycheck decides which parts of a request's body may reach an engine.
//
// A route's literal names its rules, a [Spec]; [ForPath] returns those of an engine's path. They are an allow-list of
// top-level members: an engine never sees one that could reach its files, addresses, slots or adapters. A body is read
// once: the caller calls [Check.Member] for each top-level member and, when the model is known, [Check.Finish], which
// looks into the few members that hold content, media, schemas and grammars. Unknown members and nulls are overwritten
// with blanks in place, so that a body is not decoded, and copied only where an engine needs another form.
//
// What is checked is what could run programs, read files, fetch addresses or reach other users' data, and sizes. Types,
// ranges and meaning are the engine's to check. A request that crashes an engine on purpose is contained by the
// sandbox, the restart and the replay of the others' requests: see infra/docs/security.md.
//
// Errors are [*api.Error] for the client. They quote nothing of the body except names of fields.
package bodycheck

import (
	"bytes"
	"slices"
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Check checks one body. The zero value is ready for use.
type Check struct {
	values  [ruleCount]jsonscan.Value
	dropped []field
	err     error // the first one

	format []byte // what the engine gets in place of the client's response_format; nil leaves that one
	// Text is set by Finish to the bytes of the body without its media.
	Text int
}

// field is a member to be blanked in the body.
type field struct {
	name string // "" for one that is null
	span jsonscan.Span
}

// maxDropped bounds how many members of an object are blanked.
const maxDropped = 256

// Model describes the model to Finish.
type Model struct {
	Fields   []string // further top-level members that its engine takes
	LlamaCpp bool     // its engine is of the llama.cpp family
	Vision   bool     // it has a projector
}

// Member checks the top-level member that m has come to.
func (c *Check) Member(s *Spec, m *jsonscan.Members) {
	name, v := m.Name(), m.Value()
	r, known := s.rules[string(name)]
	switch {
	case !known:
		if forbidden[string(name)] && !v.Empty() {
			c.fail(api.Newf(api.UnsupportedParameter, "'%s' reaches into an engine that others share and is not accepted here.", name).WithParam(string(name)))
		}
		c.drop(field{string(name), m.Span()})
	case !v.Set(), r == onlyFalse && v.Bool():
		c.drop(field{"", m.Span()}) // null means absent, which not every engine knows
	case r == passThrough, r == onlyFalse:
	case r == noObjects:
		if fixTokens(v) {
			c.fail(api.Newf(api.UnsupportedParameter, "'%s' must be texts or tokens.", name).WithParam(string(name)))
		}
	case r == imagePrompt:
		c.fail(checkImagePrompt(string(name), v.Bytes()))
	case c.values[r].Set():
		c.fail(api.Newf(api.InvalidRequest, "'%s' is given twice.", name).WithParam(string(name)))
	default:
		c.values[r] = v
	}
}

// fixTokens writes tokens such as 1000.0 as the whole numbers that engines want, and reports whether v holds an object,
// however deep.
func fixTokens(v jsonscan.Value) (hasObject bool) {
	w := jsonscan.WalkOf(v.Raw)
	var look func() bool
	look = func() bool {
		if w.Kind() == jsonscan.Array {
			return w.Array(look)
		}
		item := w.Raw()
		hasObject = hasObject || item.Kind == jsonscan.Object
		if n, ok := item.Int(); ok && bytes.ContainsAny(item.Raw, ".eE") {
			overwrite(item.Raw, strconv.AppendInt(nil, n, 10))
		}
		return true
	}
	look()
	return hasObject
}

// overwrite puts a text in place of one that is as long or longer.
func overwrite(place, text []byte) {
	if len(text) > len(place) {
		return
	}
	for i := copy(place, text); i < len(place); i++ {
		place[i] = ' '
	}
}

func (c *Check) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *Check) drop(f field) {
	if len(c.dropped) == maxDropped {
		c.fail(api.Newf(api.UnsupportedParameter, "The request has more than %d fields that are null or unknown.", maxDropped))
		return
	}
	c.dropped = append(c.dropped, f)
}

// Read calls Member for all members of a body. Its error is a [*jsonscan.SyntaxError].
func (c *Check) Read(s *Spec, body []byte) error {
	m, err := jsonscan.Open(body)
	if err != nil {
		return err
	}
	for m.Next() {
		c.Member(s, &m)
	}
	return m.Err()
}

// Finish checks what depends on the model, and returns the body for the engine. The members that neither the rules nor
// the model name are blanked in body; dropped counts them. body must be the one whose members were passed to Member.
func (c *Check) Finish(s *Spec, body []byte, model func() Model) (out []byte, dropped int, err error) {
	if c.err != nil {
		return nil, 0, c.err
	}
	var content content
	var rewritten, offered []byte
	if v := c.values[messages]; v.Set() {
		rewritten, err = content.messages(v, s.parts)
	}
	if v := c.values[system]; v.Set() && err == nil {
		_, err = content.value("system", v, systemParts)
	}
	if v := c.values[embeddingInput]; err == nil && fixTokens(v) {
		if m := model(); !m.LlamaCpp || !m.Vision {
			return nil, 0, api.New(api.UnsupportedParameter, "This model embeds texts and tokens only.").WithParam("input")
		}
		err = content.embeddingInputs(v)
	}
	if err == nil {
		err = c.constraints(model)
	}
	if err == nil {
		offered, err = mapItems(c.values[tools], func(tool jsonscan.Value) ([]byte, error) { return typed(tool, false) })
	}
	if err != nil {
		return nil, 0, err
	}
	c.Text = len(body) - content.media.encoded
	dropped = c.blank(body, model)
	for _, m := range [...]struct {
		name  string
		value []byte
	}{{"messages", rewritten}, {"tools", offered}, {"response_format", c.format}} {
		if m.value == nil {
			continue
		}
		if body, err = jsonscan.Set(body, m.name, m.value); err != nil {
			return nil, 0, api.BadJSON(err)
		}
	}
	return body, dropped, nil
}

// blank overwrites the dropped members, except those that the model takes.
func (c *Check) blank(body []byte, model func() Model) (unknown int) {
	if len(c.dropped) == 0 {
		return 0
	}
	fields := model().Fields
	spans := make([]jsonscan.Span, 0, len(c.dropped))
	for _, f := range c.dropped {
		if f.name != "" && slices.Contains(fields, f.name) {
			continue
		}
		spans = append(spans, f.span)
		if f.name != "" {
			unknown++
		}
	}
	jsonscan.Blank(body, spans)
	return unknown
}

// filter calls keep for each member of the object v and blanks those for which it returns false.
func filter(v jsonscan.Value, keep func(name []byte, v jsonscan.Value) (bool, error)) error {
	m := jsonscan.MembersOf(v)
	var spans []jsonscan.Span
	for m.Next() {
		ok, err := keep(m.Name(), m.Value())
		if err != nil {
			return err
		}
		if ok {
			continue
		}
		if len(spans) == maxDropped {
			return api.Newf(api.UnsupportedParameter, "An object of the request has more than %d unknown fields.", maxDropped)
		}
		spans = append(spans, m.Span())
	}
	jsonscan.Blank(v.Raw, spans)
	return nil
}

// checkImagePrompt refuses a tag that sd-server reads as settings, which may name files.
func checkImagePrompt(name string, text []byte) error {
	if bytes.Contains(text, []byte("sd_cpp_extra_args")) {
		return api.Newf(api.UnsupportedParameter, "'%s' holds settings of the engine, which are not accepted here.", name).WithParam(name)
	}
	return nil
}

// maxValues bounds the commas and braces of a body that is decoded. Plain text has one in 20 to 100 bytes, so a text of
// ten megabytes passes.
const maxValues = 500_000

// Decodable refuses a body of so many small values that decoding it would take many times its size.
func Decodable(body []byte) error {
	if bytes.Count(body, []byte("{"))+bytes.Count(body, []byte(",")) > maxValues {
		return api.New(api.RequestTooLarge, "The request has too many values.")
	}
	return nil
}
