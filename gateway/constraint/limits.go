package constraint

import "errors"

// Limits of schemas and grammars. Engines turn a schema into a grammar and try
// the grammar on every token of their vocabulary.
const (
	maxConstraint  = 256 << 10 // bytes of all tools, of a schema, of a grammar
	maxLevels      = 100       // levels of nesting in a schema
	maxNodes       = 4000      // objects and lists of a schema
	maxVisits      = 20_000    // of a schema and of what it refers to, by an engine that turns it into a grammar
	maxAlike       = 1000      // names of a schema that become one in a grammar; an engine compares all of them
	maxTypes       = 8         // types in a list
	maxProperties  = 200       // properties of an object
	maxChoices     = 500       // values of an enum, alternatives of a schema
	maxName        = 256       // bytes of a property's name
	maxPlace       = 2048      // bytes of all names that lead to a part of a schema
	bytesOfWork    = 64        // bytes of places that reading handles in a unit of work
	edgeWork       = 4         // for an alternative
	classWork      = 300       // for a Unicode class of a pattern
	maxElems       = 1 << 17   // elements of a schema's skeleton
	maxPattern     = 1024      // bytes of a pattern
	maxPatternDeep = 16        // nested groups of a pattern
	maxRepeats     = 512       // copies that counted repetitions inside one another make
	maxCopies      = 16 << 10  // copies that all counted repetitions and lengths of a document make
	maxQuantifiers = 128       // quantifiers of a grammar, or of all patterns of a document
	maxRules       = 1000      // rules of a grammar
	maxGroups      = 64        // nested groups
	maxBranches    = 256       // alternatives of a rule
	maxClass       = 512       // bytes of a character class
	maxLiterals    = 64 << 10  // bytes of all literals and character classes of a grammar
	maxBound       = 1e15      // of a number: llama.cpp's converter does not end on those of more digits
)

// cost is how much of each kind an engine handles one by one.
type cost struct {
	quantifiers int // an engine tracks all ways of repeating or leaving out the part side by side
	copies      int // of what is repeated
	work        int // of reading and of the search for ambiguity; at most maxWork
}

// errWork means that a check would take too long.
var errWork = errors.New("it has too many parts or repetitions, or names that are too long, taken together")

// add adds to a document's cost, and returns an error above what engines survive.
func (c *cost) add(more cost) error {
	c.quantifiers += more.quantifiers
	c.copies = clamp(c.copies + clamp(more.copies))
	c.work += more.work
	if c.work > maxWork {
		return errWork
	}
	if c.quantifiers > maxQuantifiers || c.copies > maxCopies {
		return errors.New("its repetitions are too many, taken together")
	}
	return nil
}
