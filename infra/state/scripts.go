package state

import (
	"context"
	"embed"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// luaFiles holds the operations, lua/NAME.lua, and the functions they share, lua/lib/NAME.lua.
//
//go:embed lua/*.lua lua/lib/*.lua
var luaFiles embed.FS

// format is the number of the state's format. Raise it by hand with every change after which programs from before and
// after it must not share a pool.
const format = "1"

// script is one operation. On Redis 7 and later it starts with `#!lua`, so that a server that is out of memory or lacks
// its replicas refuses it before its first effect. Servers that do not know that line (miniredis, Redis 6) get the
// script without it.
type script struct {
	modern, plain *redis.Script
}

// newScript reads an operation. A line `-- include LIB …` in it, and in libraries, puts each of these libraries in
// front once. If the library `changes` is included, the operation's events are published last.
func newScript(name string) *script {
	source := luaSource(name)
	shebang, body, _ := strings.Cut(source, "\n")
	included := map[string]bool{}
	var libs strings.Builder
	libs.WriteString("local FORMAT = '" + format + "'\n")
	include(source, included, &libs)
	end := "return operation()\n"
	if included["changes"] {
		end = "local reply = operation()\nflush()\nreturn reply\n"
	}
	plain := libs.String() + "local function operation()\n" + body + "\nend\n" + end
	return &script{modern: redis.NewScript(shebang + "\n" + plain), plain: redis.NewScript(plain)}
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

// run calls the script by its digest, and sends its text only to a server that does not have it (NOSCRIPT). plain is
// set once the server does not know `#!lua`.
func (s *script) run(ctx context.Context, c redis.Scripter, plain *atomic.Bool, prefix string, args ...any) *redis.Cmd {
	if !plain.Load() {
		cmd := s.modern.Run(ctx, c, []string{prefix}, args...)
		if !unknownShebang(cmd.Err()) {
			return cmd
		}
		plain.Store(true)
	}
	return s.plain.Run(ctx, c, []string{prefix}, args...)
}

// unknownShebang reports whether err is a compile error in the first line, which means that nothing ran.
func unknownShebang(err error) bool {
	var re redis.Error
	if err == nil || !errors.As(err, &re) {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "compiling script") || strings.Contains(text, "unexpected symbol") || strings.Contains(text, "parse error")
}

// scripts are all operations, by the names of their files.
var scripts = sync.OnceValue(func() map[string]*script {
	files, err := luaFiles.ReadDir("lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	out := map[string]*script{}
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".lua"); ok {
			out[name] = newScript(name)
		}
	}
	return out
})
