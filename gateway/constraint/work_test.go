package constraint

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/testenv/kit"
)

// hostile are schemas that are small to send and large to check.
func hostile() map[string]string {
	repeat := func(n int, format string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = strings.ReplaceAll(format, "#i", fmt.Sprint(i))
		}
		return strings.Join(parts, ",")
	}
	long := strings.Repeat("n", 2000)
	list := strings.Repeat("items/0/", 31) + "items/0"
	path := "#/$defs/k" + strings.Repeat("/properties/"+list, 5) + "/properties/a"
	chain := `{"type":"object","properties":{`
	for i := range 96 {
		chain += fmt.Sprintf(`"a%d":{"$ref":"%s%d"},`, i, path, i+1)
	}
	chain += `"a96":{"type":"object","properties":{"z":{"type":"string"}}}}}`
	for range 5 {
		chain = `{"type":"object","properties":{"` + list + `":` + chain + `}}`
	}
	members := `{"properties":{` + repeat(200, `"p#i":{}`) + `}}`
	return map[string]string{
		"references through a chain": `{"$defs":{"k":` + chain + `,"s":{"$ref":"` + path + `0"}},"properties":{` +
			repeat(7, `"p#i":{"type":"object","allOf":[`+repeat(490, `{"$ref":"#/$defs/s"}`)+`]}`) + `}}`,
		"many members of many parts": `{"$defs":{"t":` + members + `},"properties":{` +
			repeat(7, `"g#i":{"allOf":[`+repeat(490, `{"$ref":"#/$defs/t"}`)+`]}`) + `}}`,
		"references of many forms":  `{` + repeat(1000, `"a#i":{"$ref":"#/`+strings.Repeat("items/0/", 20)+`#i"}`) + `}`,
		"members under long names":  `{"` + long + `":{` + repeat(41_000, `"a":1`) + `}}`,
		"values under long names":   `{"` + long + `":{"const":[` + repeat(120_000, "0") + `]}}`,
		"references of long places": `{"` + long + `":{` + repeat(20_000, `"$ref":"#/a"`) + `}}`,
		"alternatives of no schema": `{` + repeat(250, `"a#i":{"anyOf":[`+repeat(499, "1")+`]}`) + `}`,
		"types inside types":        strings.Repeat(`{"type":`, 90) + `{"a":"` + strings.Repeat(`\"`, 120_000) + `"}` + strings.Repeat("}", 90),
		"Unicode classes":           `{` + repeat(250, `"pattern":"^`+strings.Repeat(`[^\\pL\\pN]`, 70)+`$"`) + `}`,
	}
}

// A schema of at most 256 KiB costs a check a bounded amount of memory, which here stands for time.
func TestWork(t *testing.T) {
	const most = 32 << 20
	for name, text := range hostile() {
		if len(text) > maxConstraint {
			t.Errorf("%s: %d bytes", name, len(text))
		}
		var before, after runtime.MemStats
		s := schemaCheck{Schemas: Schemas{Param: "json_schema", Llama: true, Lenient: true}}
		runtime.ReadMemStats(&before)
		err := s.document(jsonscan.Value{Kind: jsonscan.Object, Raw: []byte(text)})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > most && !kit.Race { // the race detector has the compiler allocate more
			t.Errorf("%s: %d bytes allocated, error %v", name, n, err)
		} else {
			t.Logf("%s: %d bytes allocated, %d work, error %v", name, n, s.spent.work, err)
		}
	}
}

func BenchmarkHostile(b *testing.B) {
	for name, text := range hostile() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := schemaCheck{Schemas: Schemas{Param: "json_schema", Llama: true, Lenient: true}}
				_ = s.document(jsonscan.Value{Kind: jsonscan.Object, Raw: []byte(text)})
			}
		})
	}
}

// Groups inside one another do not copy the names in them again and again.
func TestGrammarNames(t *testing.T) {
	text := "root ::= " + strings.Repeat("(", 60)
	for i := range maxRules + 1 {
		text += fmt.Sprintf("a%d ", i)
	}
	if err := checkGrammar(text + strings.Repeat(")", 60)); err == nil {
		t.Error("a grammar of too many names passed")
	}
}

// References that lead in a circle are refused in each form in which an engine reads them.
func TestCircles(t *testing.T) {
	for _, text := range []string{
		`{"allOf":[{"$ref":"#/allOf/0"}]}`, `{"allOf":[{"$ref":"#/allOf/00"}]}`, `{"allOf":[{"$ref":"#/allOf/+0x"}]}`,
		`{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b/allOf/00"}]},"b":{"allOf":[{"$ref":"#/$defs/a/allOf/00"}]}},"$ref":"#/$defs/a"}`,
		`{"type":"string","allOf":[{"$ref":"#/allOf/00"}]}`, `{"oneOf":[{"$ref":"#/oneOf/00"}]}`,
	} {
		s := schemaCheck{Schemas: Schemas{Param: "json_schema", Llama: true}}
		if err := s.document(jsonscan.Value{Kind: jsonscan.Object, Raw: []byte(text)}); err == nil {
			t.Errorf("%s passed", text)
		}
	}
	for ref, ok := range map[string]bool{
		"#/$defs/Missing": true, "#/definitions/Missing": true, "#/components/schemas/Missing": true,
		"#/default/a": false, "#/minimum/a": false, "#/enum/0": false, "#/allOf/-18446744073709551615": false, "#/allOf/\\u000b0": false, "#/$defs/a/default/b": false,
	} {
		text := `[{"type":"function","function":{"name":"f","parameters":{"default":{"a":{"$ref":"#/default/a"}},"allOf":[{"type":"object"},{"$ref":"` + strings.ReplaceAll(ref, `\\`, `\`) + `"}]}}}]`
		s := schemaCheck{Schemas: Schemas{Param: "tools", Llama: true, Lenient: true}}
		if err := s.document(jsonscan.Value{Kind: jsonscan.Array, Raw: []byte(text)}); (err == nil) != ok {
			t.Errorf("a tool with %s: %v", ref, err)
		}
	}
	s := schemaCheck{Schemas: Schemas{Param: "json_schema", Llama: true}}
	text := `{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},"b":{"properties":{"x":{"$ref":"#/$defs/a"}}}},"$ref":"#/$defs/a"}`
	if err := s.document(jsonscan.Value{Kind: jsonscan.Object, Raw: []byte(text)}); err != nil {
		t.Errorf("recursion through a member: %v", err)
	}
}

// An engine copies a schema for each reference, and what lies behind each step of it.
func TestStepsOfReferences(t *testing.T) {
	steep := func(refs, steps, values int) string {
		inner, all := `"default":[0`+strings.Repeat(",0", values)+`]`, ""
		for i := range refs {
			inner += fmt.Sprintf(`,"x%d":{}`, i)
			all += fmt.Sprintf(`,{"$ref":"#%s/x%d"}`, strings.Repeat("/if", steps), i)
		}
		return `"anyOf":[` + all[1:] + `],` + strings.Repeat(`"if":{`, steps) + inner + strings.Repeat("}", steps)
	}
	flat := func(refs, bytes int) string {
		defs, all := "", ""
		for i := range refs {
			defs += fmt.Sprintf(`,"x%d":{"description":%q}`, i, strings.Repeat("a ", bytes/2))
			all += fmt.Sprintf(`,"p%d":{"$ref":"#/$defs/x%d"}`, i, i)
		}
		return `"properties":{` + all[1:] + `},"$defs":{` + defs[1:] + `}`
	}
	for _, tt := range []struct {
		schema string
		want   string
	}{
		{steep(200, 90, 20_000), "invalid_type"}, // 100 KB, which took 11 s
		{steep(100, 50, 2000), ""},
		{flat(100, 1000), ""}, // as clients send them
	} {
		for param := range forms {
			if err := check(param, `{`+tt.schema+`}`, true); (err == nil) != (tt.want == "") || err != nil && api.As(err).Code != tt.want {
				t.Errorf("%s, %d bytes, %.60s: %v, want %q", param, len(tt.schema), tt.schema, err, tt.want)
			}
		}
	}
}
