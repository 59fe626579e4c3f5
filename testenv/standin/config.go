package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is what the flags say. The zero value of a fault is "behave".
type Config struct {
	Host   string // IP address, or the path of a unix socket that ends in .sock
	Port   int    // 0: any free one, named in the "listening" log line
	Alias  string // model name in answers
	Ctx    int    // context size that /props and /slots tell, in tokens
	APIKey string // required as Bearer token of everything but /health; empty: none
	Type   string // the one model type served; empty: all

	LoadTime   time.Duration // from start to ready
	FailLoad   int           // this many first starts fail; -1: all
	StateFile  string        // counts starts for FailLoad; empty: see starts.go
	NeedFile   string        // start fails unless this file can be opened
	ExitAfter  exitAfter
	CrashOn    string        // SIGKILL itself when a request's body holds this; empty: never
	HangOn     string        // inference hangs for everybody when a request's body holds this; empty: never
	Hang       string        // one of hangs
	TokenDelay time.Duration // before each generated token
	Step       bool          // each generated token waits for one POST /standin/step
	Tokens     int           // length of a response, in tokens
	Garbage    string        // one of garbages
	Raw        string        // a file whose bytes are the response to each inference request, after which the connection ends
	OOMOver    int           // more tokens than this in one call answer "out of memory"; 0: no limit
	CallCost   time.Duration // each embedding call takes this long, one call at a time,
	InputCost  time.Duration // plus this for each of its inputs

	IgnoreSigterm bool
}

// exitAfter says when the process kills itself: some time after it became ready, or
// in the middle of the n-th inference request. Zero: never.
type exitAfter struct {
	after    time.Duration
	requests int
}

// String is the flag's text form.
func (e exitAfter) String() string {
	if e.requests > 0 {
		return strconv.Itoa(e.requests)
	}
	if e.after > 0 {
		return e.after.String()
	}
	return ""
}

// Set reads "N" as a count of requests and everything else as a duration.
func (e *exitAfter) Set(s string) error {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 {
			return fmt.Errorf("want at least 1 request")
		}
		*e = exitAfter{requests: n}
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return fmt.Errorf("want a number of requests or a duration such as 2s")
	}
	*e = exitAfter{after: d}
	return nil
}

// The kinds of --type, --hang and --garbage. The first of hangs and garbages is meant
// by the bare flag.
var (
	types    = []string{"llm", "embedding", "reranking", "audio", "tts", "image"}
	hangs    = []string{"infer", "load", "health"}
	garbages = []string{"framing", "line", "content-type"}
)

// keyVariable holds the API key unless --api-key does: arguments can be read by every user
// of a host.
const keyVariable = "STANDIN_API_KEY"

// parse reads args; getenv is os.Getenv. Help and usage errors are written to out; flag.ErrHelp asks for an
// exit without error.
func parse(args []string, getenv func(string) string, out io.Writer) (Config, error) {
	var c Config
	fs := flag.NewFlagSet("standin", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&c.Host, "host", "127.0.0.1", "listen `address`, or path of a unix socket ending in .sock")
	fs.IntVar(&c.Port, "port", 8080, "listen `port`; 0 takes a free one")
	fs.StringVar(&c.Alias, "alias", "standin", "model `name` in answers")
	fs.StringVar(&c.Alias, "model", "standin", "the same as --alias")
	fs.IntVar(&c.Ctx, "ctx-size", 4096, "context size in `tokens`, only told in /props and /slots")
	fs.StringVar(&c.APIKey, "api-key", "", "`key` that every request but /health must carry as Bearer token (default: $"+keyVariable+")")
	fs.StringVar(&c.Type, "type", "", "serve one model `type` only ("+strings.Join(types, ", ")+"); others answer 501")
	fs.DurationVar(&c.LoadTime, "load-time", 0, "`time` from start to ready; health is 503 until then")
	fs.IntVar(&c.FailLoad, "fail-load", 0, "the first `N` starts fail (exit 1 after --load-time), counted in --state; -1: every start")
	fs.StringVar(&c.StateFile, "state", "", "`file` that counts starts across processes; default: one in the temporary folder for each parent process and alias")
	fs.StringVar(&c.NeedFile, "need-file", "", "exit 1 with an engine's message unless this `file` can be opened")
	fs.Var(&c.ExitAfter, "exit-after", "SIGKILL itself: a `duration` after ready, or N: in the middle of the N-th inference request")
	fs.StringVar(&c.CrashOn, "crash-on", "", "SIGKILL itself when an inference request's body holds this `text`")
	fs.StringVar(&c.HangOn, "hang-on", "", "when an inference request's body holds this `text`, no inference and no reading of /slots ends any more; health is fine")
	fs.StringVar(&c.Hang, "hang", "", "`what` never ends: "+strings.Join(hangs, ", ")+" (bare flag: "+hangs[0]+")")
	fs.DurationVar(&c.TokenDelay, "token-delay", 0, "`time` before each generated token")
	fs.BoolVar(&c.Step, "step", false, "each generated token waits for one POST /standin/step, whenever that came")
	fs.IntVar(&c.Tokens, "tokens", 16, "`N` tokens in an answer, unless the request asks for fewer")
	fs.StringVar(&c.Garbage, "garbage", "", "break inference answers, streams after their first event; `kind`: "+strings.Join(garbages, ", ")+" (bare flag: "+garbages[0]+")")
	fs.StringVar(&c.Raw, "raw", "", "answer inference requests with the bytes of this `file`, head and all, and close the connection")
	fs.IntVar(&c.OOMOver, "oom-over", 0, "more than `N` tokens in one call answer 500 out of memory; 0: no limit")
	fs.DurationVar(&c.CallCost, "call-cost", 0, "`time` an embedding call takes, one call at a time")
	fs.DurationVar(&c.InputCost, "input-cost", 0, "`time` added to an embedding call for each of its inputs")
	fs.BoolVar(&c.IgnoreSigterm, "ignore-sigterm", false, "go on after SIGTERM and SIGINT")
	args = fillBare(args, map[string][]string{"hang": hangs, "garbage": garbages})
	if err := fs.Parse(args); err != nil {
		return Config{}, err
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if c.APIKey == "" {
		c.APIKey = getenv(keyVariable)
	}
	return c, c.validate()
}

// validate refuses values that no behavior is defined for.
func (c Config) validate() error {
	for _, f := range []struct {
		flag, value string
		allowed     []string
	}{{"type", c.Type, types}, {"hang", c.Hang, hangs}, {"garbage", c.Garbage, garbages}} {
		if f.value != "" && !slices.Contains(f.allowed, f.value) {
			return fmt.Errorf("--%s %q: want one of %s", f.flag, f.value, strings.Join(f.allowed, ", "))
		}
	}
	if c.Tokens < 0 || c.OOMOver < 0 || c.FailLoad < -1 {
		return fmt.Errorf("--tokens and --oom-over want at least 0, --fail-load at least -1")
	}
	if c.LoadTime < 0 || c.TokenDelay < 0 || c.CallCost < 0 || c.InputCost < 0 {
		return fmt.Errorf("durations must not be negative")
	}
	return nil
}

// fillBare gives the named flags their first kind where they stand without a value, so
// that "--hang", "--hang load" and "--hang=load" are all understood.
func fillBare(args []string, kinds map[string][]string) []string {
	var out []string
	for i, arg := range args {
		out = append(out, arg)
		allowed, ok := kinds[strings.TrimLeft(arg, "-")]
		if !ok || !strings.HasPrefix(arg, "-") {
			continue
		}
		if i+1 == len(args) || strings.HasPrefix(args[i+1], "-") {
			out = append(out, allowed[0])
		}
	}
	return out
}
