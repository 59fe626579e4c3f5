package recipe

const redacted = "[redacted]"

// A Redactor removes what an engine quotes from requests from its log, line by line, using the engine's Recipe. It is
// for one stream and not safe for concurrent use.
type Redactor struct {
	Recipe *Recipe
	marked bool // LogLine has matched, so it is valid for this build of the engine
}

// Line returns the next line without what Redact matches. Once a line has matched LogLine, it redacts every line that
// does not match: such a line belongs to a quote that spans lines or was cut for its length.
func (d *Redactor) Line(text string) string {
	own := d.Recipe.LogLine != nil && d.Recipe.LogLine.MatchString(text)
	if d.marked = d.marked || own; d.marked && !own {
		return redacted
	}
	for _, re := range d.Recipe.Redact {
		text = re.ReplaceAllLiteralString(text, redacted)
	}
	return text
}
