package bodycheck

import (
	"bytes"
	"encoding/base64"
	"slices"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// valueID identifies a value that Finish looks into.
type valueID uint8

const (
	noSlot valueID = iota
	messagesSlot
	systemSlot
	embedSlot
	promptSlot
	querySlot
	documentsSlot
	textsSlot
	toolsSlot
	formatSlot
	schemaSlot
	grammarSlot
	outputSlot
	temperatureSlot
	spreadSlot
	drySlot
	excludeSlot
	endlessSlot
	thresholdSlot
	biasSlot
	budgetSlot
	thinkingBudgetSlot
	thinkingSlot
	choiceSlot
	promptedSlot
	continuedSlot
	variablesSlot
	runsSlot
	runsTooSlot
	valueCount
)

// field is a member to be blanked in the body.
type field struct {
	name  string
	place jsonscan.Span
}

// Check checks one body. The zero value is ready for use.
type Check struct {
	values  [valueCount]jsonscan.Value
	dropped []field
	err     *api.Error

	mediaBytes int  // decoded
	shaped     bool // a grammar or a schema constrains the whole answer
	formatted  bool // a schema does

	// Constrained is set by Finish for a body that asks for constrained output.
	Constrained bool
	// Format is set by Finish to the response_format that the engine gets in place of the client's; nil leaves that one.
	Format []byte
	// TextBytes is set by Finish: the bytes of an engine's body without its media and constraints, for each of its prompts.
	TextBytes int
	// AllText is the same for all of its prompts together.
	AllText int
}

// See checks a top-level member. If a name occurs several times, Finish uses the last member, as engines do, but each must
// follow the rules.
func (c *Check) See(s *Spec, name []byte, m *jsonscan.Members) {
	r, known := s.rules[string(name)]
	if !known {
		v := m.Value()
		if refused[string(name)] && v.Set() && c.err == nil {
			c.err = reaches(name)
		}
		if s.translated {
			return
		}
		if r, known := tokenFields[string(name)]; known && c.err == nil {
			if e := r.check(name, v); e != nil {
				c.err = e
			}
		}
		c.drop(name, m)
		return
	}
	v := m.Value()
	if r.keptAs != noSlot {
		c.values[r.keptAs] = v
	}
	if e := r.check(name, v); e != nil && c.err == nil {
		c.err = e
	}
	if r.drops != "" && string(v.Raw) == r.drops {
		c.drop(name, m)
	}
}

// drop records a member for Finish to blank.
func (c *Check) drop(name []byte, m *jsonscan.Members) {
	if len(c.dropped) < maxDropped {
		c.dropped = append(c.dropped, field{string(name), m.Span()})
	} else if c.err == nil {
		c.err = api.Newf(api.UnsupportedParameter, "The request has more than %d fields that are not known here.", maxDropped)
	}
}

// maxDropped bounds how many fields of a body are blanked.
const maxDropped = 256

// Model describes the model to Finish.
type Model struct {
	Fields []string // further fields that its engine takes
	Llama  bool     // its engine is of the llama.cpp family, which turns schemas into grammars in its own way
	Sees   bool     // it has a projector, so that llama-server embeds pictures with it
}

// Read sees all members of a body. Its error is a [*jsonscan.SyntaxError].
func (c *Check) Read(s *Spec, body []byte) error {
	m, err := jsonscan.Open(body)
	if err != nil {
		return err
	}
	for m.Next() {
		c.See(s, m.Name(), &m)
	}
	return m.Err()
}

// Finish checks what depends on several members or on the model, and blanks in body the fields that neither the rules nor the
// model name; dropped counts them. body must be the one whose members were passed to See.
func (c *Check) Finish(s *Spec, body []byte, model func() Model) (dropped int, err error) {
	if c.err != nil {
		return 0, c.err
	}
	if err := c.checkParts(s, model); err != nil {
		return 0, err
	}
	if e := tooManyPrompts(c.values[promptSlot], len(body)); e != nil {
		return 0, e
	}
	for _, s := range [...]valueID{documentsSlot, textsSlot} {
		if e := tooMuchToRank(c.values[querySlot], c.values[s]); e != nil {
			return 0, e
		}
	}
	if !s.translated {
		c.countText(len(body))
	}
	if len(c.dropped) == 0 {
		return 0, nil
	}
	fields := model().Fields
	places := make([]jsonscan.Span, 0, len(c.dropped))
	for _, f := range c.dropped {
		if slices.Contains(fields, f.name) {
			continue
		}
		places = append(places, f.place)
	}
	jsonscan.Blank(body, places)
	return len(places), nil
}

// countText sets TextBytes for a body of size bytes.
func (c *Check) countText(size int) {
	c.TextBytes = size - base64.StdEncoding.EncodedLen(c.mediaBytes)
	for _, s := range [...]valueID{toolsSlot, formatSlot, schemaSlot, grammarSlot, outputSlot} { // bounded by maxConstraint each
		c.TextBytes -= len(c.values[s].Raw)
	}
	c.AllText = c.TextBytes
	if v := c.values[promptSlot]; isMany(v) {
		c.TextBytes /= max(v.Len(), 1)
	}
}

// checkParts checks the content, the tools and the constraints.
func (c *Check) checkParts(s *Spec, model func() Model) error {
	p := parts{dialect: s.dialect}
	if v := c.values[messagesSlot]; v.Set() {
		p.begin("messages", v)
		if e := p.messages(v); e != nil {
			return e
		}
		v := c.values[promptedSlot]
		unprompted := v.Kind == jsonscan.Bool && !v.Bool()
		if (several(c.values[runsSlot]) || several(c.values[runsTooSlot])) && (unprompted || c.begun() != nil) {
			return api.New(api.UnsupportedParameter, "'n' must be 1 where a request continues an answer or has no generation prompt.").WithParam("n")
		}
		if p.last && (p.ended || unprompted) && model().Llama {
			return api.New(api.UnsupportedParameter, "Behind pictures and sounds there must be a text, or the beginning of an answer: some engines end over a prompt that ends with one.").WithParam("messages")
		}
	}
	if v := c.values[systemSlot]; v.Kind == jsonscan.Array {
		p.begin("system", v)
		w := jsonscan.WalkOf(v.Raw)
		if e := p.list(&w, systemParts); e != nil {
			return e
		}
	} else if v.Set() && v.Kind != jsonscan.String {
		return wrong([]byte("system"), "a text or a list of blocks")
	} else if e := unbroken("system", v); e != nil {
		return e
	}
	c.mediaBytes = p.media.Bytes()
	if v := c.values[embedSlot]; pictured(v) {
		if m := model(); !m.Llama || !m.Sees {
			return api.New(api.UnsupportedParameter, "This model embeds texts and tokens only.").WithParam("input")
		}
		p.begin("input", v)
		if e := p.inputs(v); e != nil {
			return e
		}
	}
	return c.constraints(model)
}

const (
	maxPrompts     = 128
	maxPromptsCopy = 1 << 20 // bytes that engines keep once for each prompt, together
)

// isMany reports whether v is a list of prompts, and not the tokens of one.
func isMany(v jsonscan.Value) bool {
	return isList(v, func(item jsonscan.Value) bool { return item.Kind != jsonscan.Number })
}

// tooManyPrompts bounds a list of prompts in a body of size bytes. An engine makes a task of each prompt, with a copy of all
// other fields.
func tooManyPrompts(v jsonscan.Value, size int) *api.Error {
	if !isMany(v) {
		return nil
	}
	n := v.Len()
	if n > maxPrompts {
		return api.Newf(api.InvalidType, "'prompt' has %d prompts; at most %d are accepted.", n, maxPrompts).WithParam("prompt")
	}
	if n > 1 && n*(size-len(v.Raw)) > maxPromptsCopy {
		return api.Newf(api.InvalidType, "The request's other fields are too large for %d prompts; send them one by one.", n).WithParam("prompt")
	}
	return nil
}

// maxRanked bounds what an engine reads for a rerank request, in bytes: the documents, each with a copy of the query.
const maxRanked = 4 << 20

// documentMark is the placeholder for the document in the templates of rerankers. Engines insert the query first, so they
// replace a mark in the query by the document as well.
const documentMark = "{document}"

// tooMuchToRank bounds a rerank request. An engine reads the query once for each document, and notices only afterwards that
// the client has left.
func tooMuchToRank(query, documents jsonscan.Value) *api.Error {
	n, times := documents.Len(), 1+bytes.Count(query.Bytes(), []byte(documentMark))
	if n*len(query.Raw)+times*len(documents.Raw) > maxRanked {
		return api.Newf(api.InvalidType, "The rerank request is too large: engines read the query once for each of the %d documents, and may read %d MiB in all. Send fewer or shorter documents.", n, maxRanked>>20).WithParam("documents")
	}
	return nil
}
