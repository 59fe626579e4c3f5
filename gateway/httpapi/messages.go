package httpapi

import (
	"bytes"
	"strings"

	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

// messages relays Anthropic's messages. Engines name them as chats, so they get ids of Anthropic's form.
func (s *Server) messages(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	if err := c.canonicalName(); err != nil {
		return err
	}
	x := &exchange{call: c, path: messagesPath}
	if c.stream {
		x.translator = new(messageEvents)
	} else {
		x.answer = func(x *exchange, resp *relay.Response) error { return x.sendTranslated(resp, withMessageID) }
	}
	return x.start()
}

var messagesPath = []byte("/v1/messages")

// messageID begins the ids of Anthropic's messages.
const messageID = "msg_"

// withMessageID gives a message that has another id one of Anthropic's form.
func withMessageID(message []byte) ([]byte, error) {
	var v [1]jsonscan.Value
	if jsonscan.Scan(message, []string{"id"}, v[:]) != nil {
		return nil, completion.ErrAnswer
	}
	id := v[0].String()
	if v[0].Kind != jsonscan.String || strings.HasPrefix(id, messageID) {
		return message, nil
	}
	return jsonscan.SetString(message, "id", messageID+strings.TrimPrefix(id, "chatcmpl-"))
}

// messageEvents passes the events of a message on, with withMessageID applied to the message that the first one holds.
type messageEvents struct {
	part []byte // of a line that has not ended, until the message was seen
	seen bool
}

// maxFirstLine bounds what messageEvents keeps, in bytes. A longer line is not one that begins a message.
const maxFirstLine = 64 << 10

// Append appends events to dst.
func (m *messageEvents) Append(dst, events []byte) []byte {
	for !m.seen {
		text, rest, whole := bytes.Cut(events, []byte("\n"))
		m.part = append(m.part, text...)
		if !whole {
			m.seen = len(m.part) > maxFirstLine
			break
		}
		dst = append(m.appendLine(dst, m.part), '\n')
		m.part, events = m.part[:0], rest
	}
	if !m.seen {
		return dst
	}
	dst = append(append(dst, m.part...), events...)
	m.part = nil
	return dst
}

// appendLine appends a line to dst.
func (m *messageEvents) appendLine(dst, line []byte) []byte {
	data, is := bytes.CutPrefix(line, []byte("data:"))
	var v [2]jsonscan.Value
	if !is || jsonscan.Scan(data, []string{"type", "message"}, v[:]) != nil || v[0].String() != "message_start" {
		return append(dst, line...)
	}
	m.seen = true
	message, err := withMessageID(v[1].Raw)
	if err != nil {
		return append(dst, line...)
	}
	named, err := jsonscan.Set(data, "message", message)
	if err != nil {
		return append(dst, line...)
	}
	return append(append(dst, "data: "...), bytes.TrimLeft(named, " ")...)
}

// End appends the part of a line that the stream ended in.
func (m *messageEvents) End(dst []byte) []byte {
	dst = append(dst, m.part...)
	m.part = nil
	return dst
}
