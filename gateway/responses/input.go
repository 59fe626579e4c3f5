package responses

import (
	"encoding/json"
	"strings"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// inputItem is an item of a request's input.
type inputItem struct {
	Type      string   `json:"type"`
	ID        string   `json:"id"`
	Role      string   `json:"role"`
	Content   content  `json:"content"`
	Summary   content  `json:"summary"`
	CallID    string   `json:"call_id"`
	Name      string   `json:"name"`
	Arguments jsonText `json:"arguments"`
	Input     string   `json:"input"`
	Output    content  `json:"output"`
}

// jsonText is the text of a JSON value; some clients send the value itself.
type jsonText string

// UnmarshalJSON accepts both forms.
func (t *jsonText) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	if *t = jsonText(b); *t == "null" {
		*t = ""
	}
	return nil
}

// content is a list of parts, or a text, which is one part.
type content []inputPart

// inputPart is a part of a content.
type inputPart struct {
	Type       string          `json:"type"`
	Text       *string         `json:"text"`
	Refusal    *string         `json:"refusal"`
	ImageURL   string          `json:"image_url"`
	Detail     string          `json:"detail"`
	InputAudio json.RawMessage `json:"input_audio"`
}

// UnmarshalJSON accepts both forms.
func (c *content) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		part := inputPart{Type: "input_text", Text: new(string)}
		*c = content{part}
		return json.Unmarshal(b, part.Text)
	}
	return json.Unmarshal(b, (*[]inputPart)(c))
}

// dialogue is made from the items of a request.
type dialogue struct {
	messages []completion.ChatMessage
	// What a model said in one go is one message, but several items: its reasoning, its text, its calls.
	turn    bool // the last message is such a turn of the assistant, which may go on
	hasText bool // of which the text is there
}

// messagesOf returns the messages of a chat.
func messagesOf(instructions, input json.RawMessage) ([]completion.ChatMessage, error) {
	var d dialogue
	var text string
	if len(instructions) > 0 && json.Unmarshal(instructions, &text) != nil {
		return nil, api.New(api.InvalidType, "'instructions' must be a text.").WithParam("instructions")
	}
	d.system(text)
	if json.Unmarshal(input, &text) == nil {
		return append(d.messages, completion.ChatMessage{Role: "user", Content: text}), nil
	}
	var items []inputItem
	if err := json.Unmarshal(input, &items); err != nil {
		return nil, errUnsupported("'input' must be a text or a list of items, whose content is a text or a list of parts.")
	}
	if len(items) > api.MaxItems {
		return nil, errUnsupported("'input' has more than %d items.", api.MaxItems)
	}
	for _, i := range items {
		if err := d.item(i); err != nil {
			return nil, err
		}
	}
	return d.messages, nil
}

func (d *dialogue) item(i inputItem) (err error) {
	if i.Type == "" && i.Role != "" {
		i.Type = "message"
	}
	switch i.Type {
	case "message":
		return d.message(i)
	case "reasoning": // if it is readable
		text, err := i.Content.text("\n")
		if err == nil && text == "" {
			text, err = i.Summary.text("\n")
		}
		if text != "" {
			d.turn = false
			d.assistant().Reasoning = text
		}
		return err
	case "function_call":
		if i.CallID == "" || i.Name == "" {
			return errUnsupported("An item of type 'function_call' needs the texts 'call_id', 'name' and 'arguments'.")
		}
		m := d.assistant()
		m.ToolCalls = append(m.ToolCalls, completion.Call{
			ID: i.CallID, Type: "function", Function: completion.Function{Name: i.Name, Arguments: string(i.Arguments)},
		})
		return nil
	case "custom_tool_call": // one of a function with a text
		arguments, err := jsonscan.Marshal(map[string]string{"input": i.Input})
		if err != nil {
			return err
		}
		return d.item(inputItem{Type: "function_call", CallID: i.CallID, Name: i.Name, Arguments: jsonText(arguments)})
	case "function_call_output", "custom_tool_call_output":
		if i.CallID == "" {
			return errUnsupported("An item of type '%s' needs a 'call_id'.", i.Type)
		}
		m := completion.ChatMessage{Role: "tool", ToolCallID: i.CallID}
		m.Content, err = i.Output.chat()
		d.add(m)
		return err
	case "item_reference":
		return errUnsupported("Items of type 'item_reference' are not supported: this gateway stores no responses (--store-responses); send the items themselves, with 'store' false.")
	}
	tool := strings.HasSuffix(i.Type, "_call") || strings.HasSuffix(i.Type, "_call_output")
	if tool && !strings.HasPrefix(i.Type, "computer") { // whose screenshots are all that it says
		return nil // what OpenAI's own tools did, in a conversation that started there; the responses show
	}
	return errUnsupported("An item's type is not supported: use message, reasoning, function_call or function_call_output.")
}

func (d *dialogue) message(i inputItem) (err error) {
	switch i.Role {
	case "system", "developer":
		text, err := i.Content.text("\n\n")
		d.system(text)
		return err
	case "user":
		m := completion.ChatMessage{Role: "user"}
		m.Content, err = i.Content.chat()
		d.add(m)
		return err
	case "assistant":
		if d.hasText || d.turn && len(d.assistant().ToolCalls) > 0 {
			d.turn = false
		}
		m := d.assistant()
		d.hasText = true
		m.Content, err = i.Content.chat()
		return err
	}
	return errUnsupported("A message's 'role' must be user, assistant, system or developer.")
}

// system adds a message of the system. Templates want it first, and only one, so those at the beginning are joined.
func (d *dialogue) system(text string) {
	switch {
	case text == "":
	case len(d.messages) == 1 && d.messages[0].Role == "system":
		d.messages[0].Content = d.messages[0].Content.(string) + "\n\n" + text
	default:
		d.add(completion.ChatMessage{Role: "system", Content: text})
	}
}

func (d *dialogue) add(m completion.ChatMessage) {
	d.messages = append(d.messages, m)
	d.turn, d.hasText = false, false
}

// assistant returns the message of the assistant's turn, and starts one if needed.
func (d *dialogue) assistant() *completion.ChatMessage {
	if !d.turn {
		d.add(completion.ChatMessage{Role: "assistant", Content: ""})
		d.turn = true
	}
	return &d.messages[len(d.messages)-1]
}

// text returns a content of texts alone, with sep between them.
func (c content) text(sep string) (string, error) {
	texts := make([]string, 0, len(c))
	for _, p := range c {
		part, err := p.chat()
		if err != nil {
			return "", err
		}
		if part.Text == nil {
			return "", errUnsupported("The content of system and developer messages, and of reasoning, is text.")
		}
		texts = append(texts, *part.Text)
	}
	return strings.Join(texts, sep), nil
}

// chat returns the content of a message of a chat: a list of parts, or a text if there is just one.
func (c content) chat() (any, error) {
	parts := make([]completion.ChatPart, 0, len(c))
	for _, p := range c {
		part, err := p.chat()
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	switch {
	case len(parts) == 0:
		return "", nil
	case len(parts) == 1 && parts[0].Text != nil:
		return *parts[0].Text, nil
	}
	return parts, nil
}

func (p inputPart) chat() (completion.ChatPart, error) {
	text := p.Text
	switch p.Type {
	case "refusal":
		text = p.Refusal
		fallthrough
	case "input_text", "output_text", "text", "summary_text", "reasoning_text":
		if text == nil {
			return completion.ChatPart{}, errUnsupported("A content part of type '%s' needs a text.", p.Type)
		}
		return completion.ChatPart{Type: "text", Text: text}, nil
	case "input_image":
		if p.ImageURL == "" {
			return completion.ChatPart{}, errUnsupported("An 'input_image' needs an 'image_url' that is a data: URL.")
		}
		return completion.ChatPart{Type: "image_url", ImageURL: &completion.ImageURL{URL: p.ImageURL, Detail: p.Detail}}, nil
	case "input_audio":
		return completion.ChatPart{Type: "input_audio", InputAudio: p.InputAudio}, nil
	case "input_file":
		return completion.ChatPart{}, errUnsupported("Files are not supported: send text, images or audio.")
	}
	return completion.ChatPart{}, errUnsupported(
		"A content part's type is not supported: use input_text, output_text, refusal, input_image or input_audio.")
}

func errUnsupported(format string, args ...any) error {
	return api.Newf(api.InvalidType, format, args...).WithParam("input")
}
