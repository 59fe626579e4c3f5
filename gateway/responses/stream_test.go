package responses_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"reveille/gateway/completion"
	"reveille/gateway/responses"
)

var began = time.Unix(1000, 0)

func writer() *responses.ResponseWriter {
	return &responses.ResponseWriter{ID: "I", Model: "m", Began: began, Now: func() time.Time { return began.Add(3 * time.Second) }, Echo: responses.Echo{"metadata": json.RawMessage("{}")}}
}

// told feeds a stream in pieces, of which cut gives the sizes, and returns what comes out.
func told(events string, cut func(rest int) int) string {
	s := responses.NewStream(writer())
	var out []byte
	for len(events) > 0 {
		n := cut(len(events))
		out = s.Append(out, []byte(events[:n]))
		events = events[n:]
	}
	return string(s.End(s.End(out)))
}

func whole(rest int) int { return rest }

// event is an event as a client reads it.
type event struct {
	Type         string
	Sequence     int `json:"sequence_number"`
	Response     *response
	OutputIndex  int    `json:"output_index"`
	ContentIndex int    `json:"content_index"`
	ItemID       string `json:"item_id"`
	Item         *item
	Part         *part
	Delta        string
	Text         string
	Arguments    string
	Code         string
	Message      string
}

type response struct {
	ID, Status string
	Output     []item
	Incomplete *struct{ Reason string } `json:"incomplete_details"`
	Error      *struct{ Code, Message string }
	Usage      map[string]any
	Metadata   map[string]any
}

type item struct {
	ID, Type, Status, Role, Name, Arguments string
	CallID                                  string `json:"call_id"`
	Content                                 []part
}

type part struct{ Type, Text string }

// events reads a stream; comments are left out.
func events(text string) (list []event, err error) {
	if !strings.HasSuffix(text, "\n\n") {
		return nil, fmt.Errorf("%q does not end with an event", text)
	}
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if strings.HasPrefix(block, ":") {
			continue
		}
		name, data, _ := strings.Cut(block, "\ndata: ")
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil || name != "event: "+e.Type {
			return nil, fmt.Errorf("%q: %w", block, err)
		}
		if e.Sequence != len(list) {
			return nil, fmt.Errorf("%q is event %d", block, len(list))
		}
		list = append(list, e)
	}
	return list, nil
}

// replay puts the output together from the events as clients do, and checks that each event fits to those before it.
func replay(list []event) (output []item, err error) {
	fail := func(e event, why string) error { return fmt.Errorf("event %d, %s: %s", e.Sequence, e.Type, why) }
	texts := map[int]string{}
	for i, e := range list {
		if early := i < 2; early != (e.Type == "response.created" || e.Type == "response.in_progress") {
			return nil, fail(e, "is not at its place")
		}
		if e.Response != nil {
			if e.Response.ID != "resp_I" || e.Response.Output == nil || e.Response.Metadata == nil {
				return nil, fail(e, "lacks members")
			}
			if i > 1 && (i != len(list)-1 || !reflect.DeepEqual(e.Response.Output, append([]item{}, output...))) {
				return nil, fail(e, fmt.Sprintf("its output is %+v, the items are %+v", e.Response.Output, output))
			}
			continue
		}
		if e.Type == "response.output_item.added" {
			if e.OutputIndex != len(output) || e.Item.Status != "in_progress" || len(e.Item.Content) > 0 {
				return nil, fail(e, "does not begin an item")
			}
			output = append(output, *e.Item)
			continue
		}
		if e.OutputIndex >= len(output) || output[e.OutputIndex].Status != "in_progress" {
			return nil, fail(e, "its item is not open")
		}
		it := &output[e.OutputIndex]
		if e.Item == nil && e.ItemID != it.ID || e.ContentIndex != 0 {
			return nil, fail(e, "is of another item")
		}
		switch e.Type {
		case "response.content_part.added":
			it.Content = append(it.Content, *e.Part)
		case "response.output_text.delta", "response.reasoning_text.delta":
			it.Content[0].Text += e.Delta
		case "response.function_call_arguments.delta":
			it.Arguments += e.Delta
		case "response.output_text.done", "response.reasoning_text.done":
			texts[e.OutputIndex] = e.Text
		case "response.function_call_arguments.done":
			texts[e.OutputIndex] = e.Arguments
		case "response.content_part.done":
			if *e.Part != it.Content[0] {
				return nil, fail(e, "the part is not the sum of its deltas")
			}
		case "response.output_item.done":
			it.Status = e.Item.Status
			if it.Type == "function_call" {
				it.Name = e.Item.Name
			}
			if !reflect.DeepEqual(*e.Item, *it) || e.Item.Arguments+text(*e.Item) != texts[e.OutputIndex] {
				return nil, fail(e, fmt.Sprintf("the item is %+v, the sum of its events %+v", *e.Item, *it))
			}
		default:
			return nil, fail(e, "is not known")
		}
	}
	return output, nil
}

func text(it item) string {
	if len(it.Content) == 0 {
		return ""
	}
	return it.Content[0].Text
}

// deltas draws the messages' parts of a stream: thoughts, words and calls in any order, calls side by side.
func deltas(t *rapid.T) (list []completion.Message) {
	words := rapid.StringN(0, 5, -1)
	for range rapid.IntRange(0, 12).Draw(t, "deltas") {
		var s completion.Message
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			s.Content = words.Draw(t, "content")
		case 1:
			s.Reasoning = words.Draw(t, "reasoning")
		case 2:
			s.Thinking, s.Content = words.Draw(t, "thinking"), words.Draw(t, "content")
		case 3:
			for range rapid.IntRange(1, 2).Draw(t, "calls") {
				s.ToolCalls = append(s.ToolCalls, completion.Call{
					Index: completion.Number(rapid.IntRange(0, 3).Draw(t, "index")), ID: rapid.SampledFrom([]string{"", "c"}).Draw(t, "id"),
					Function: completion.Function{Name: rapid.SampledFrom([]string{"", "f"}).Draw(t, "name"), Arguments: words.Draw(t, "arguments")},
				})
			}
		}
		list = append(list, s)
	}
	return list
}

// TestStreamProperties: however an engine's stream is cut, the same events follow, and they fit together.
func TestStreamProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reason := rapid.SampledFrom([]string{"stop", "length", "tool_calls", "content_filter"}).Draw(t, "reason")
		var in strings.Builder
		send := func(c completion.Completion) {
			raw, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			in.WriteString(rapid.SampledFrom([]string{"", ": ping\n\n", ": loading model=m\n\n", "\r\n"}).Draw(t, "between"))
			in.WriteString("data: " + string(raw) + rapid.SampledFrom([]string{"\n\n", "\r\n\r\n"}).Draw(t, "end"))
		}
		list := deltas(t)
		for _, d := range list {
			send(completion.Completion{Choices: []completion.Choice{{Delta: &d}}})
		}
		send(completion.Completion{Choices: []completion.Choice{{Reason: reason}}})
		send(completion.Completion{Usage: &completion.Usage{Prompt: 3, Output: 4}})
		if rapid.Bool().Draw(t, "done") {
			in.WriteString("data: [DONE]\n\n")
		}
		out := told(in.String(), whole)
		if got := told(in.String(), func(rest int) int { return rapid.IntRange(1, min(rest, 40)).Draw(t, "cut") }); got != out {
			t.Fatalf("in pieces %q, whole %q", got, out)
		}
		evs, err := events(out)
		if err != nil {
			t.Fatal(err)
		}
		output, err := replay(evs)
		if err != nil {
			t.Fatalf("%v in %q", err, out)
		}
		var said, thought, gotSaid, gotThought string
		for _, d := range list {
			said += d.Content
			thought += d.ReasoningContent()
		}
		for _, it := range output {
			switch it.Type {
			case "message":
				gotSaid += text(it)
			case "reasoning":
				gotThought += text(it)
			}
			if it.Status == "in_progress" {
				t.Fatalf("%+v was not ended", it)
			}
		}
		if gotSaid != said || gotThought != thought {
			t.Fatalf("said %q and %q, want %q and %q", gotSaid, gotThought, said, thought)
		}
		last := evs[len(evs)-1]
		want := map[string]string{"length": "incomplete", "content_filter": "incomplete"}[reason]
		if want == "" {
			want = "completed"
		}
		if last.Type != "response."+want || last.Response.Status != want || last.Response.Usage["total_tokens"] != 7.0 {
			t.Fatalf("ended with %+v", last.Response)
		}
	})
}

// TestStreamAndResponseAgree: a message has the same output in one piece and as a stream.
func TestStreamAndResponseAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.StringN(0, 8, -1)
		m := completion.Message{Content: words.Draw(t, "content"), Reasoning: words.Draw(t, "reasoning")}
		for range rapid.IntRange(0, 3).Draw(t, "calls") {
			m.ToolCalls = append(m.ToolCalls, completion.Call{
				ID: fmt.Sprint("c", len(m.ToolCalls)), Function: completion.Function{Name: "f", Arguments: words.Draw(t, "arguments")},
			})
		}
		reason := rapid.SampledFrom([]string{"stop", "length"}).Draw(t, "reason")
		engine, err := json.Marshal(completion.Completion{Choices: []completion.Choice{{Message: &m, Reason: reason}}, Usage: &completion.Usage{Prompt: 1}})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := writer().Response(engine)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.ToolCalls {
			m.ToolCalls[i].Index = completion.Number(i)
		}
		stream, err := json.Marshal(completion.Completion{Choices: []completion.Choice{{Delta: &m, Reason: reason}}, Usage: &completion.Usage{Prompt: 1}})
		if err != nil {
			t.Fatal(err)
		}
		out := told("data: "+string(stream)+"\n\ndata: [DONE]\n\n", whole)
		if want := `,"response":` + string(answer) + "}\n\n"; !strings.HasSuffix(out, want) {
			t.Fatalf("%q does not end with %q", out, want)
		}
	})
}

func TestResponse(t *testing.T) {
	got, err := writer().Response([]byte(`{"choices":[{"message":{"content":"hi <b>","reasoning":"hm","reasoning_content":"hm","tool_calls":[{"id":"c","function":{"name":"f","arguments":""}},{"function":{"name":"g","arguments":"{}"}}]},
		"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":1}}}`))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, `{"id":"resp_I","object":"response","created_at":1000,"completed_at":1003,"status":"completed","background":false,"error":null,"incomplete_details":null,"model":"m",
		"output":[{"id":"rs_I0","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
			{"id":"msg_I1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"hi <b>","annotations":[],"logprobs":[]}]},
			{"id":"fc_I2","type":"function_call","status":"completed","call_id":"c","name":"f","arguments":"{}"},
			{"id":"fc_I3","type":"function_call","status":"completed","call_id":"call_I3","name":"g","arguments":"{}"}],
		"previous_response_id":null,"store":false,"service_tier":"default","metadata":{},
		"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":3,"cache_write_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":7}}`)
	if got, err = writer().Response([]byte(`{"choices":[{"message":{"content":null},"finish_reason":"length"}]}`)); err != nil ||
		!strings.Contains(string(got), `"status":"incomplete","background":false,"error":null,"incomplete_details":{"reason":"max_output_tokens"},"model":"m","output":[]`) || !strings.Contains(string(got), `"total_tokens":0`) {
		t.Errorf("%s, %v", got, err)
	}
	for _, engine := range []string{``, `[]`, `{}`, `{"choices":[]}`, `<html>`} {
		if _, err := writer().Response([]byte(engine)); !errors.Is(err, completion.ErrInvalidResponse) {
			t.Errorf("%q: %v", engine, err)
		}
	}
}

func TestStreamOfTexts(t *testing.T) {
	if out := told(`data: {"choices":[{"text":"hello"}]}`+"\n\ndata: [DONE]\n\n", whole); !strings.Contains(out, `"delta":"hello"`) {
		t.Error(out)
	}
}

// A stream that breaks off ends with an error and a failed response, and nothing follows.
func TestBrokenStream(t *testing.T) {
	const (
		a    = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
		late = "event: error\n" + `data: {"type":"error","sequence_number":0,"message":"gone","error":{"message":"gone","type":"server_error","param":null,"code":"draining"}}` + "\n\n"
		none = "The engine's response is invalid."
	)
	for in, want := range map[string]string{
		late: "gone", a + late: "gone", a + "data: {oops\n\n" + late: "gone", a + a[:9] + "\n\n" + late + a: "gone",
		"data: [DONE]\n\n": none, "": none, a + "data: {oops\n\n": none, a + "data: {oops\n\n" + a: none,
		a + `data: {"error":"text"}` + "\n\n": "text", a + "event: error\n" + `data: {"message":"no"}` + "\n\n": "no", a + "event: error\ndata: 5\n\n": none, a + `data: {"error":{"code":500,"message":"no"}}` + "\n\n": "no",
	} {
		evs, err := events(told(in, whole))
		if err != nil || len(evs) < 2 {
			t.Fatalf("%q: %v", in, err)
		}
		e, end := evs[len(evs)-2], evs[len(evs)-1]
		if e.Type != "error" || e.Message != want || end.Type != "response.failed" || end.Response.Status != "failed" || end.Response.Error == nil || end.Response.Error.Message != want {
			t.Errorf("%q ended with %+v and %+v", in, e, end)
		}
		if want == "gone" && (e.Code != "draining" || end.Response.Error.Code != "draining") {
			t.Errorf("codes %q and %+v", e.Code, end.Response.Error)
		}
		for _, it := range end.Response.Output {
			if it.Status != "incomplete" {
				t.Errorf("%q left %+v", in, it)
			}
		}
	}
}

// FuzzStream: whatever an engine streams, the events can be read and the last one ends the response.
func FuzzStream(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n")
	f.Add("error: x\n: c\n{\"error\":\"e\"}\n")
	f.Fuzz(func(t *testing.T, in string) {
		list, err := events(told(in, whole))
		if err != nil || len(list) == 0 {
			t.Fatalf("%q: %v", in, err)
		}
		switch list[len(list)-1].Type {
		case "response.completed", "response.incomplete", "response.failed":
		default:
			t.Fatalf("%q ended with %+v", in, list[len(list)-1])
		}
	})
}
