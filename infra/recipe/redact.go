package recipe

const redacted = "[redacted]"

// A Redactor takes what an engine quotes of requests out of its log, line by line, by the engine's Recipe. It is for one
// stream and not safe for concurrent use.
type Redactor struct {
	Recipe *Recipe
	marked bool // LogLine has matched, so it fits this build of the engine
}

// Line returns the next line without its quotes: without what Redact matches, and, once a line has matched LogLine, without
// all of a line that does not. Such a line is part of a quote that has several lines, or that was cut for its length.
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
