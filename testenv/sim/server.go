package sim

import (
	"bufio"
	"bytes"
	"crypto/sha1" // the digest that Redis knows a script by
	"fmt"
	"strings"
	"sync"
	"time"

	luajson "github.com/alicebob/miniredis/v2/gopher-json"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// scripts runs the pool's scripts on the embedded Redis, one after the other, in one Lua state that outlives a call: the
// embedded Redis makes a new one for each, which is most of what a call costs there. Half of all calls are snapshots that
// several mirrors take at one instant, of a pool that has not changed in between: those of the same hosts get the reply of the first.
//
// Invariant: a reply is reused only while no other script ran, the pool was not edited, and the clock stands still. All
// else that clients write (settings) is in no snapshot.
//
// It is safe for concurrent use. Of what Redis offers to scripts there is redis.call, redis.pcall (which finds no error that call would not) and cjson, which is all they use.
type scripts struct {
	mu    sync.Mutex
	srv   *server.Server
	lua   *lua.LState
	known map[string]*lua.LFunction // by digest

	inner   *server.Peer // asks what scripts ask
	effects uint64       // of the script that runs: what its writes changed, and what it published
	out     bytes.Buffer // receives its responses
	in      *bufio.Reader

	snapshot string            // digest
	replies  map[string][]byte // to snapshots that may be reused, as they go over the wire, by their arguments
	at       time.Time         // of the replies
}

// texts are compiled scripts by text: worlds share them.
var texts sync.Map // string → *lua.FunctionProto

func newScripts(srv *server.Server) *scripts {
	s := &scripts{srv: srv, lua: lua.NewState(), known: map[string]*lua.LFunction{}, replies: map[string][]byte{}}
	s.inner = server.NewPeer(bufio.NewWriter(&s.out))
	s.in = bufio.NewReader(&s.out)
	luajson.Loader(s.lua)
	s.lua.SetGlobal("cjson", s.lua.Get(-1))
	s.lua.Pop(1)
	s.lua.SetGlobal("redis", s.lua.SetFuncs(s.lua.NewTable(), map[string]lua.LGFunction{"call": s.call, "pcall": s.call}))
	return s
}

// eval answers EVAL and EVALSHA. now is Redis' clock. A script that refuses is told to declined with what it changed.
func (s *scripts) eval(c *server.Peer, now time.Time, cmd string, args []string, declined func(refusal string, effects uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reads, asked := cmd == "EVALSHA" && args[0] == s.snapshot, strings.Join(args, "\x00")
	if !reads || !now.Equal(s.at) {
		clear(s.replies)
	}
	s.at = now
	reply := s.replies[asked]
	if reply == nil {
		s.effects = 0
		reply = s.run(cmd, args)
		if refusal := refusal(reply); refusal != "" {
			declined(refusal, s.effects)
		}
	}
	c.Block(func(w *server.Writer) { w.WriteRaw(string(reply)) })
	if reads && reply[0] == '*' {
		s.replies[asked] = reply
	}
}

// edited says that the pool was changed by other means than a script.
func (s *scripts) edited() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.replies)
}

// run runs a script and returns its reply as it goes over the wire.
func (s *scripts) run(cmd string, args []string) []byte {
	fn := s.known[args[0]]
	if cmd == "EVAL" {
		var err error
		if fn, err = s.load(args[0]); err != nil {
			return fmt.Appendf(nil, "-ERR Error compiling script: %s\r\n", inline(err))
		}
	}
	if fn == nil {
		return []byte("-NOSCRIPT No matching script. Please use EVAL.\r\n")
	}
	keys, argv := s.lua.NewTable(), s.lua.NewTable()
	keys.Append(lua.LString(args[2])) // all have one key
	for _, a := range args[3:] {
		argv.Append(lua.LString(a))
	}
	s.lua.SetGlobal("KEYS", keys)
	s.lua.SetGlobal("ARGV", argv)
	if err := s.lua.CallByParam(lua.P{Fn: fn, NRet: 1, Protect: true}); err != nil {
		return fmt.Appendf(nil, "-ERR %s\r\n", inline(err))
	}
	defer s.lua.Pop(1)
	return encode(nil, s.lua.Get(-1))
}

// load makes a script known. A server of Redis 6, as the embedded one, has no word for the line `#!lua`.
func (s *scripts) load(text string) (*lua.LFunction, error) {
	proto, ok := texts.Load(text)
	if !ok {
		chunk, err := parse.Parse(strings.NewReader(text), "script")
		if err != nil {
			return nil, err
		}
		compiled, err := lua.Compile(chunk, "script")
		if err != nil {
			return nil, err
		}
		proto, _ = texts.LoadOrStore(text, compiled)
	}
	digest := fmt.Sprintf("%x", sha1.Sum([]byte(text)))
	if strings.Contains(text, "\n-- snapshot: ") {
		s.snapshot = digest
	}
	s.known[digest] = s.lua.NewFunctionFromProto(proto.(*lua.FunctionProto))
	return s.known[digest], nil
}

// call is redis.call.
func (s *scripts) call(l *lua.LState) int {
	args := make([]string, l.GetTop())
	for i := range args {
		args[i] = l.CheckString(i + 1)
	}
	if args[0] == "INFO" { // miniredis has no section of replication
		l.Push(lua.LString("role:master"))
		return 1
	}
	s.srv.Dispatch(s.inner, args)
	s.inner.Flush()
	reply, err := server.ParseReply(s.in)
	if err != nil {
		l.RaiseError("%s", err)
	}
	if effective(args[0], reply) {
		s.effects++
	}
	l.Push(value(l, reply))
	return 1
}

// effective reports whether a command changed something or told somebody.
func effective(command string, reply any) bool {
	switch command {
	case "SET", "HSET", "HSETNX", "HINCRBY", "HINCRBYFLOAT", "RPUSH", "LPUSH", "PUBLISH", "EXPIRE", "PEXPIRE":
		return true
	case "DEL", "HDEL", "LREM", "SREM", "ZREM", "ZREMRANGEBYSCORE", "SADD", "ZADD":
		return reply != 0
	}
	return false
}

// refusals are the words with which a script says that it did nothing, and how each goes over the wire.
var refusals = map[string][]byte{"fenced": []byte("$6\r\nfenced\r\n"), "lost": []byte("$4\r\nlost\r\n"), "busy": []byte("$4\r\nbusy\r\n"), "stale": []byte("$5\r\nstale\r\n"), "stopping": []byte("$8\r\nstopping\r\n")}

// refusal is the refusal in a script's reply, alone or first in a list; "" for any other answer.
func refusal(reply []byte) string {
	if first, rest, list := bytes.Cut(reply, []byte("\r\n")); list && first[0] == '*' {
		reply = rest
	}
	for word, bulk := range refusals {
		if bytes.HasPrefix(reply, bulk) {
			return word
		}
	}
	return ""
}

// value turns a response of Redis into what a script sees of it.
func value(l *lua.LState, reply any) lua.LValue {
	switch r := reply.(type) {
	case nil:
		return lua.LFalse
	case server.Simple:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(r))
		return t
	case string:
		return lua.LString(r)
	case int:
		return lua.LNumber(r)
	case []any:
		t := l.NewTable()
		for _, item := range r {
			t.Append(value(l, item))
		}
		return t
	}
	panic(fmt.Sprintf("scripts know no answer of type %T", reply))
}

// encode turns what a script returns into the reply. Numbers lose their fractions, a list ends before its first nil.
func encode(to []byte, v lua.LValue) []byte {
	switch v := v.(type) {
	case lua.LString:
		return fmt.Appendf(to, "$%d\r\n%s\r\n", len(v), string(v))
	case lua.LNumber:
		return fmt.Appendf(to, ":%d\r\n", int64(v))
	case lua.LBool:
		if v {
			return append(to, ":1\r\n"...)
		}
	case *lua.LTable:
		if e := v.RawGetString("err"); e != lua.LNil {
			return fmt.Appendf(to, "-%s\r\n", e)
		}
		if ok := v.RawGetString("ok"); ok != lua.LNil {
			return fmt.Appendf(to, "+%s\r\n", ok)
		}
		n := v.Len()
		to = fmt.Appendf(to, "*%d\r\n", n)
		for i := range n {
			to = encode(to, v.RawGetInt(i+1))
		}
		return to
	}
	return append(to, "$-1\r\n"...)
}

func inline(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
