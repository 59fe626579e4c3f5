package state

import (
	"embed"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// luaFiles holds the operations, lua/NAME.lua, and the functions they share, lua/lib/NAME.lua.
//
//go:embed lua/*.lua lua/lib/*.lua
var luaFiles embed.FS

// newScript reads an operation. A line `-- include LIB …` in it, and in libraries, puts each of these libraries in front once.
// With the library changes, the operation's events are published last. The first line, `#!lua`, tells editors the language:
// miniredis and Redis 6 do not know it.
func newScript(name string) *redis.Script {
	source := luaSource(name)
	_, body, _ := strings.Cut(source, "\n")
	included := map[string]bool{}
	var libs strings.Builder
	include(source, included, &libs)
	end := "return operation()\n"
	if included["changes"] {
		end = "local reply = operation()\nflush()\nreturn reply\n"
	}
	return redis.NewScript(libs.String() + "local function operation()\n" + body + "\nend\n" + end)
}

func include(source string, included map[string]bool, out *strings.Builder) {
	_, line, _ := strings.Cut(source, "\n-- include ")
	line, _, _ = strings.Cut(line, "\n")
	for lib := range strings.FieldsSeq(line) {
		if !included[lib] {
			included[lib] = true
			text := luaSource("lib/" + lib)
			include(text, included, out)
			out.WriteString(text + "\n")
		}
	}
}

func luaSource(name string) string {
	src, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	return string(src)
}

// scripts are all operations, by the names of their files.
var scripts = sync.OnceValue(func() map[string]*redis.Script {
	files, err := luaFiles.ReadDir("lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	out := map[string]*redis.Script{}
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".lua"); ok {
			out[name] = newScript(name)
		}
	}
	return out
})
