package system

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A load goes where the conversation is saved, if the hosts are equal.
func TestLoadsGoToTheirConversations(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: CHECKPOINT, device: cpu, options: {ctx_size: 4096, llamacpp_args: "-np 2 --swa-full"}}
  first: {type: llm, recipe: standin, device: cpu, hosts: [a]}
`
	w := worlds.StartFleet(t, worlds.Fleet{
		Text:  strings.Replace(models, "CHECKPOINT", testenv.Models(t).Gemma, 1),
		Hosts: []worlds.Host{{Name: "a"}, {Name: "b"}},
	})
	s := w.System
	hosts := func(model string) []string {
		t.Helper()
		list, err := w.Rdb.SMembers(t.Context(), "rv:{main}:copies:"+model).Result()
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(list)
		return list
	}
	saved := func(host string) string { return w.HGet("rv:{main}:conv:talker", host) }
	unload := func(model string) {
		t.Helper()
		if a := w.Post("/api/v1/unload", `{"model_name":"`+model+`"}`); !a.OK() {
			t.Fatal("unload: ", a)
		}
	}

	var text strings.Builder
	for i := range 60 {
		fmt.Fprintf(&text, "In the year %d the river rose by %d feet. ", 1700+i, i*7%13)
	}
	talk := []message{{"user", text.String() + "What happened?"}}
	say(t, s, "first", message{"user", "Hello."}) // takes a, so that the talk begins on b
	a := say(t, s, "talker", talk...)
	if at := hosts("talker"); !slices.Equal(at, []string{"b"}) {
		t.Fatalf("the talk begins on %v", at)
	}
	known := a.Timings.Cached + a.Timings.Computed
	talk = append(talk, a.Choices[0].Message, message{"user", "And then?"})
	want := say(t, s, "talker", talk...)
	if want.Timings.Cached < known*95/100 {
		t.Fatalf("without a move %d of %d tokens come from the cache", want.Timings.Cached, known)
	}

	unload("first")
	unload("talker")
	kit.Eventually(t, "b's conversation is in Redis", func() bool { return saved("b") != "" })
	if v := saved("b"); !regexp.MustCompile(`^\{"count":1,"tokens":\d+,"bytes":\d+,"saved_ms":\d+\}$`).MatchString(v) {
		t.Errorf("in Redis it is %q", v)
	}
	back := say(t, s, "talker", talk...)
	if at := hosts("talker"); !slices.Equal(at, []string{"b"}) {
		t.Errorf("with both hosts free the talk goes on at %v, not where it is saved", at)
	}
	if back.Timings.Cached < known*95/100 || back.Choices[0].Message != want.Choices[0].Message {
		t.Errorf("back on b: %+v, want the text of %+v", back, want)
	}
}
