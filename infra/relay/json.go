package relay

import (
	"errors"

	"reveille/infra/jsonscan"
)

var (
	errJSON  = errors.New("not JSON")
	errDepth = errors.New("nesting too deep")
)

// maxDepth bounds the nesting of arrays and objects in an answer. A client can ask a model for deeper ones.
const maxDepth = 512

// States of a JSON text, followed by actions that choose the next state.
const (
	jsonValue     = iota // before a value
	jsonFirst            // before the first value of an array, or its end
	jsonFirstName        // before the first name of an object, or its end
	jsonName             // before a name
	jsonColon            // after a name
	jsonAfter            // after a value
	jsonString           // within a string
	jsonEscape           // after its backslash
	jsonHex              // before the four digits of \u, then after each of them
	jsonHex1
	jsonHex2
	jsonHex3
	jsonMinus    // after the sign of a number
	jsonZero     // after its leading zero
	jsonDigits   // within its digits
	jsonPoint    // after its point
	jsonFraction // within its fraction
	jsonExponent // after its e
	jsonSign     // after the sign of its exponent
	jsonPower    // within the digits of its exponent
	jsonT        // after the letters of true, false and null
	jsonTr
	jsonTru
	jsonF
	jsonFa
	jsonFal
	jsonFals
	jsonN
	jsonNu
	jsonNul
	jsonBad  // not JSON
	jsonDeep // nests too deep; stays in this state

	jsonStates

	doText   = iota // begin a string
	doName          // begin a name
	doQuote         // end a string or name
	doObject        // enter an object
	doArray         // enter an array
	doLeave         // leave an object
	doLeaveArray
	doComma
)

// jsonSteps gives the next state, or the action, for each state and byte.
var jsonSteps = func() (steps [jsonStates][256]uint8) {
	for s := range steps {
		for c := range steps[s] {
			steps[s][c] = max(jsonBad, uint8(s))
		}
	}
	on := func(state uint8, chars string, next uint8) {
		for _, c := range []byte(chars) {
			steps[state][c] = next
		}
	}
	const digits, hex = "0123456789", "0123456789abcdefABCDEF"
	for _, s := range []uint8{jsonValue, jsonFirst, jsonFirstName, jsonName, jsonColon, jsonAfter} {
		on(s, " \t\r\n", s)
	}
	for _, s := range []uint8{jsonValue, jsonFirst} {
		on(s, "{", doObject)
		on(s, "[", doArray)
		on(s, `"`, doText)
		on(s, "-", jsonMinus)
		on(s, digits, jsonDigits)
		on(s, "0", jsonZero)
		on(s, "t", jsonT)
		on(s, "f", jsonF)
		on(s, "n", jsonN)
	}
	on(jsonFirst, "]", doLeaveArray)
	on(jsonFirstName, "}", doLeave)
	on(jsonFirstName, `"`, doName)
	on(jsonName, `"`, doName)
	on(jsonColon, ":", jsonValue)
	for _, s := range []uint8{jsonAfter, jsonZero, jsonDigits, jsonFraction, jsonPower} {
		on(s, " \t\r\n", jsonAfter)
		on(s, ",", doComma)
		on(s, "}", doLeave)
		on(s, "]", doLeaveArray)
	}
	for c := ' '; c < 256; c++ {
		steps[jsonString][c] = jsonString
	}
	on(jsonString, `"`, doQuote)
	on(jsonString, `\`, jsonEscape)
	on(jsonEscape, `"\/bfnrt`, jsonString)
	on(jsonEscape, "u", jsonHex)
	on(jsonHex, hex, jsonHex1)
	on(jsonHex1, hex, jsonHex2)
	on(jsonHex2, hex, jsonHex3)
	on(jsonHex3, hex, jsonString)
	on(jsonMinus, digits, jsonDigits)
	on(jsonMinus, "0", jsonZero)
	for _, s := range []uint8{jsonZero, jsonDigits} {
		on(s, ".", jsonPoint)
		on(s, "eE", jsonExponent)
	}
	on(jsonDigits, digits, jsonDigits)
	on(jsonPoint, digits, jsonFraction)
	on(jsonFraction, digits, jsonFraction)
	on(jsonFraction, "eE", jsonExponent)
	on(jsonExponent, "+-", jsonSign)
	for _, s := range []uint8{jsonExponent, jsonSign, jsonPower} {
		on(s, digits, jsonPower)
	}
	for _, word := range []struct {
		begun uint8
		rest  string
	}{{jsonT, "rue"}, {jsonF, "alse"}, {jsonN, "ull"}} {
		for i := range word.rest {
			next := word.begun + uint8(i) + 1
			if i == len(word.rest)-1 {
				next = jsonAfter
			}
			on(word.begun+uint8(i), word.rest[i:i+1], next)
		}
	}
	return steps
}()

// jsonText checks a JSON text (RFC 8259, in any encoding) that arrives in pieces of any size. It stores none of it. The
// zero value is ready for a text.
type jsonText struct {
	state  uint8
	named  bool // the string is a name
	depth  int
	object [maxDepth / 64]uint64 // bit i: the container at depth i+1 is an object
}

// feed takes the next piece. It returns false, from then on, if the text is not JSON or nests too deep.
func (j *jsonText) feed(p []byte) bool {
	state := j.state
	for i := 0; i < len(p); i++ {
		if state == jsonString {
			if i, _ = jsonscan.SkipPlain(p, i); i == len(p) {
				break
			}
		}
		if state = jsonSteps[state][p[i]]; state > jsonStates {
			state = j.do(state)
		}
	}
	j.state = state
	return state < jsonBad
}

// do performs an action and returns the next state.
func (j *jsonText) do(what uint8) uint8 {
	switch what {
	case doText, doName:
		j.named = what == doName
		return jsonString
	case doQuote:
		if j.named {
			return jsonColon
		}
		return jsonAfter
	case doObject, doArray:
		return j.enter(what == doObject)
	case doComma:
		switch {
		case j.depth == 0:
			return jsonBad
		case j.inObject():
			return jsonName
		}
		return jsonValue
	}
	if j.depth == 0 || j.inObject() != (what == doLeave) {
		return jsonBad
	}
	j.depth--
	return jsonAfter
}

func (j *jsonText) enter(object bool) uint8 {
	if j.depth == maxDepth {
		return jsonDeep
	}
	at, bit := j.depth/64, uint64(1)<<(j.depth%64)
	j.depth++
	if object {
		j.object[at] |= bit
		return jsonFirstName
	}
	j.object[at] &^= bit
	return jsonFirst
}

// inObject reports whether the innermost container is an object.
// REQUIRES: depth > 0.
func (j *jsonText) inObject() bool {
	at := j.depth - 1
	return j.object[at/64]>>(at%64)&1 == 1
}

// whole reports whether the input so far is a complete JSON text.
func (j *jsonText) whole() bool {
	switch j.state {
	case jsonAfter, jsonZero, jsonDigits, jsonFraction, jsonPower:
		return j.depth == 0
	}
	return false
}

// empty reports whether the input so far is only white space.
func (j *jsonText) empty() bool { return j.state == jsonValue && j.depth == 0 }

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
