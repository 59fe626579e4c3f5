// Package constraint decides which JSON schemas, patterns and grammars an engine can be given.
//
// Engines turn a schema into a grammar and try the grammar on every token of their vocabulary. A document that is small to
// send can therefore stop an engine for minutes, or end it. What passes here is bounded in size and depth, in what it makes
// an engine copy, and in the number of ways in which a text can be read by it: see infra/adr/0016-what-reaches-an-engine.md.
//
// A schema is checked in three steps. A schemaCheck walks it, bounds its parts and records a shape for each place. A skeleton turns
// the shapes into a grammar, as llama.cpp's converter does. [cfg.check] then parses a few texts by that grammar, as llama.cpp does,
// and counts its stacks. A grammar in GBNF is read by gbnf and checked by the last step alone.
package constraint

import (
	"regexp"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Schemas describes a member of a body that holds JSON schemas.
type Schemas struct {
	Param   string // the member's name
	Llama   bool   // llama.cpp turns them into grammars
	Lenient bool   // the engine passes over what it does not understand
}

// longText finds lengths of at least 10000, which engines refuse: Claude Code has one of 524288.
var longText = regexp.MustCompile(`"maxLength"\s*:\s*\d{5,}`)

// Check checks all schemas in v, however deep they are. It overwrites bounds of numbers that engines reject with the largest that
// they accept. If Lenient is set, it renames lengths of texts that they reject, so that engines ignore them. Its error is an
// [*api.Error].
func (s Schemas) Check(v jsonscan.Value) error {
	if e := tooLarge(s.Param, v); e != nil {
		return e
	}
	if s.Lenient {
		for _, at := range longText.FindAllIndex(v.Raw, -1) {
			copy(v.Raw[at[0]:], `"x-maxText"`)
		}
	}
	c := schemaCheck{Schemas: s}
	return c.document(v)
}

// Grammar checks a grammar in llama.cpp's notation. Its error is an [*api.Error].
func Grammar(param string, v jsonscan.Value) error {
	if e := tooLarge(param, v); e != nil {
		return e
	}
	if err := checkGrammar(v.String()); err != nil {
		return api.Newf(api.InvalidType, "'%s' is not accepted: %v.", param, err).WithParam(param)
	}
	return nil
}

func tooLarge(param string, v jsonscan.Value) *api.Error {
	if len(v.Raw) > maxConstraint || v.Depth() > maxLevels {
		return api.Newf(api.InvalidType, "'%s' is too large; at most %d bytes and %d levels are accepted.", param, maxConstraint, maxLevels).WithParam(param)
	}
	return nil
}
