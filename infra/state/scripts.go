package state

import (
	"context"
	"embed"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// luaFiles holds the operations, lua/NAME.lua, and the functions they share, lua/lib/NAME.lua.
//
//go:embed lua/*.lua lua/lib/*.lua
var luaFiles embed.FS

const shebang = "#!lua\n"

// script is one operation with a bounded reply. On Redis 7 and later it starts with `#!lua`, so that a server that is
// out of memory or lacks its replicas refuses it before its first effect. Servers that do not know that line
// (miniredis, Redis 6) get the script without it.
type script struct {
	modern, plain *redis.Script
}

// newScript builds the script of an operation from what it needs of base and the named libraries, and its file. With the
// library changes it publishes the operation's events last.
func newScript(name string, libs ...string) *script {
	var shared strings.Builder
	for _, lib := range append([]string{"base"}, libs...) {
		shared.WriteString(luaSource("lib/"+lib) + "\n")
	}
	body := "local function operation()\n" + strings.TrimPrefix(luaSource(name), shebang) + "\nend\nlocal reply = operation()\n"
	if slices.Contains(libs, "changes") {
		body += "flush()\n"
	}
	text := shebang + withShared(shared.String(), body+"return bounded(reply)\n")
	return &script{modern: redis.NewScript(text), plain: redis.NewScript(text[len(shebang):])}
}

// withShared puts the parts of a library that a body needs in front of it. A function that nothing behind it names is left
// out: Redis builds all functions of a script in each call, and that of `gateway run` keeps 12 KB for each.
func withShared(library, body string) string {
	for at := len(library); at > 0; {
		at = max(strings.LastIndex(library[:at], "\nlocal ")+1, 0)
		part := library[at:]
		library = library[:at]
		rest, isFunction := strings.CutPrefix(part, "local function ")
		name, _, _ := strings.Cut(rest, "(")
		if !isFunction || strings.Contains(body, name) {
			body = part + body
		}
	}
	return body
}

func luaSource(name string) string {
	src, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	return string(src)
}

// run calls the script by its digest, and sends its text only to a server that does not have it (NOSCRIPT). plain is set once
// the server does not know `#!lua`.
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
	return err != nil && errors.As(err, &re) && (strings.Contains(err.Error(), "compiling script") || strings.Contains(err.Error(), "unexpected symbol") || strings.Contains(err.Error(), "parse error"))
}

type scripts struct {
	boot                                         *script
	register, beat, hostState, forget, repair    *script
	modelPut, modelDrop, touch                   *script
	acquire, renew, leave, begin, pulled, finish *script
	wake, claim                                  *script
	commitSleep, confirmSleep, cancelSleep       *script
	stop, endStop                                *script
	snapshot, record, catalogPut                 *script
	responsePut, needPut, convPut, quota         *script
}

// allScripts are those of all stores of the process.
var allScripts = sync.OnceValue(func() *scripts {
	models := []string{"changes", "models"}
	tickets := append(models, "tickets")
	hosts := append(tickets, "hosts")
	sleeping := append(hosts, "sleeping")
	return &scripts{
		boot:     newScript("boot", "changes"),
		register: newScript("register", hosts...), beat: newScript("beat"), hostState: newScript("host_state", hosts...),
		forget: newScript("forget", hosts...), repair: newScript("repair", hosts...),
		modelPut: newScript("model_put", models...), modelDrop: newScript("model_drop", models...), touch: newScript("touch"),
		acquire: newScript("acquire", hosts...), renew: newScript("renew", hosts...), leave: newScript("leave", tickets...),
		begin: newScript("begin", tickets...), pulled: newScript("pulled", "changes"), finish: newScript("finish", tickets...),
		wake: newScript("wake", tickets...), claim: newScript("claim", hosts...),
		commitSleep: newScript("sleep_commit", "changes", "sleeping"), confirmSleep: newScript("sleep_confirm", sleeping...),
		cancelSleep: newScript("sleep_cancel", sleeping...),
		stop:        newScript("sleep_stop", "changes", "sleeping"), endStop: newScript("sleep_end", "changes", "sleeping"),
		snapshot: newScript("snapshot", "changes", "signed"), record: newScript("record", "signed"), catalogPut: newScript("catalog_put", "changes"),
		responsePut: newScript("response_put"), needPut: newScript("need_put", "index"), convPut: newScript("conv_put", "index"), quota: newScript("quota"),
	}
})
