package responses

import (
	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// dialogue writes the messages of a chat from the items of a request.
type dialogue struct {
	out    []byte
	first  bool   // no message was written
	system []byte // JSON text without quotes: instructions and the messages of the system before any other; nil once it was written

	// The assistant's message that is being written: what a model said in one go is one message, but several items.
	open, said, calls bool
}

// appendMessages appends the messages of a chat.
func appendMessages(dst []byte, q object) ([]byte, error) {
	d := dialogue{out: append(dst, `,"messages":[`...), first: true, system: []byte{}}
	if v := q["instructions"]; v.Set() {
		d.system = append(d.system, inner(v)...)
	}
	var err error
	switch v := q["input"]; v.Kind {
	case jsonscan.String:
		d.begin("user")
		d.out = append(append(append(d.out, `"content":`...), v.Raw...), '}')
	case jsonscan.Array:
		n := 0
		w := jsonscan.WalkOf(v.Raw)
		w.Array(func() bool {
			if n++; n > api.MaxItems {
				err = refuse("'input' has more than %d items.", api.MaxItems)
			} else if w.Kind() != jsonscan.Object {
				err = refuse("Each item of 'input' must be an object.")
			} else {
				err = d.item(read(w.Raw().Raw, itemMembers))
			}
			return err == nil
		})
	default:
		err = refuse("'input' must be a text or a list of items.")
	}
	if err != nil {
		return nil, err
	}
	d.close()
	d.writeSystem()
	return append(d.out, ']'), nil
}

var itemMembers = set("type", "role", "content", "summary", "call_id", "name", "arguments", "output")

// item takes in one item.
func (d *dialogue) item(i object) error {
	kind := i["type"].String()
	if !i["type"].Set() && i["role"].Set() {
		kind = "message"
	}
	switch kind {
	case "message":
		return d.message(i)
	case "reasoning":
		return d.reasoning(i)
	case "function_call":
		return d.call(i)
	case "function_call_output":
		id := i["call_id"]
		if id.Kind != jsonscan.String {
			return refuse("An item of type 'function_call_output' needs a 'call_id'.")
		}
		d.begin("tool")
		d.out = append(append(append(d.out, `"tool_call_id":`...), id.Raw...), ',')
		return d.content(i["output"])
	case "item_reference":
		if i["id"].String() == "" {
			return refuse("An item of type 'item_reference' needs an 'id'.")
		}
		return refuse("Items of type 'item_reference' are not supported: this gateway stores no responses (--store-responses); send the items themselves, with 'store' false.")
	}
	return refuse("An item's type is not supported: use message, reasoning, function_call or function_call_output.")
}

func (d *dialogue) message(i object) (err error) {
	switch role := i["role"].String(); role {
	case "system", "developer":
		if d.system != nil {
			if len(d.system) > 0 {
				d.system = append(d.system, `\n\n`...)
			}
			d.system, err = appendTexts(d.system, i["content"], `\n\n`)
			return err
		}
		d.begin("system")
		return d.content(i["content"])
	case "user":
		d.begin("user")
		return d.content(i["content"])
	case "assistant":
		if d.said || d.calls {
			d.close()
		}
		d.answer()
		d.said = true
		d.out = append(d.out, ',')
		d.out, err = appendContent(d.out, i["content"])
		return err
	}
	return refuse("A message's 'role' must be user, assistant, system or developer.")
}

// reasoning passes on what a model thought, as far as it is there to be read.
func (d *dialogue) reasoning(i object) error {
	var text []byte
	for _, name := range [...]string{"content", "summary"} {
		if v := i[name]; v.Set() && len(text) == 0 {
			var err error
			if text, err = appendTexts(nil, v, `\n`); err != nil {
				return err
			}
		}
	}
	if len(text) == 0 {
		return nil
	}
	d.close()
	d.answer()
	d.out = append(append(append(d.out, `,"reasoning_content":"`...), text...), '"')
	return nil
}

func (d *dialogue) call(i object) error {
	id, name, arguments := i["call_id"], i["name"], i["arguments"]
	if id.Kind != jsonscan.String || name.Kind != jsonscan.String || arguments.Kind != jsonscan.String {
		return refuse("An item of type 'function_call' needs the texts 'call_id', 'name' and 'arguments'.")
	}
	d.answer()
	if d.calls {
		d.out = append(d.out, ',')
	} else {
		d.out = append(d.out, `,"tool_calls":[`...)
		d.calls = true
	}
	d.out = append(append(d.out, `{"id":`...), id.Raw...)
	d.out = append(append(d.out, `,"type":"function","function":{"name":`...), name.Raw...)
	d.out = append(append(append(d.out, `,"arguments":`...), arguments.Raw...), `}}`...)
	return nil
}

// content ends a message with its content.
func (d *dialogue) content(v jsonscan.Value) (err error) {
	d.out, err = appendContent(d.out, v)
	d.out = append(d.out, '}')
	return err
}

// begin begins a message after the one before it was ended.
func (d *dialogue) begin(role string) {
	d.close()
	d.writeSystem()
	if !d.first {
		d.out = append(d.out, ',')
	}
	d.first = false
	d.out = append(append(append(d.out, `{"role":"`...), role...), `",`...)
}

// answer begins the assistant's message where none is open.
func (d *dialogue) answer() {
	if d.open {
		return
	}
	d.begin("assistant")
	d.out = d.out[:len(d.out)-1]
	d.open = true
}

// close ends the assistant's message.
func (d *dialogue) close() {
	if !d.open {
		return
	}
	if d.calls {
		d.out = append(d.out, ']')
	}
	if !d.said {
		d.out = append(d.out, `,"content":""`...)
	}
	d.out = append(d.out, '}')
	d.open, d.said, d.calls = false, false, false
}

// writeSystem writes the system's message. Templates want it first, and only one.
func (d *dialogue) writeSystem() {
	text := d.system
	if d.system = nil; len(text) == 0 {
		return
	}
	d.first = false
	d.out = append(append(append(d.out, `{"role":"system","content":"`...), text...), `"}`...)
}

// inner is the content between the quotes of a text.
func inner(text jsonscan.Value) []byte { return text.Raw[1 : len(text.Raw)-1] }

func refuse(format string, args ...any) error {
	return api.Newf(api.InvalidType, format, args...).WithParam("input")
}
