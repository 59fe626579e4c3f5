package attack

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// forgery replaces a key's value with a hostile one; kind is the key's type.
type forgery func(ctx context.Context, rdb *redis.Client, key, kind string) error

// forgeries are what somebody who can write Redis may put anywhere.
var forgeries = []struct {
	name string
	put  forgery
}{
	{"a string", byScript(`redis.call('SET', KEYS[1], 'x')`)},
	{"a list", byScript(`redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'x', 'y')`)},
	{"a sorted set", byScript(`redis.call('DEL', KEYS[1]) redis.call('ZADD', KEYS[1], 1, 'x')`)},
	{"a hash", byScript(`redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'x', 'y')`)},
	{"40 MiB", byScript(`local huge = string.rep('9', 40 * 1024 * 1024)
		if ARGV[1] == 'hash' then redis.call('HSET', KEYS[1], 'huge', huge) elseif ARGV[1] == 'set' then redis.call('SADD', KEYS[1], huge)
		elseif ARGV[1] == 'zset' then redis.call('ZADD', KEYS[1], '1e18', huge) elseif ARGV[1] == 'list' then redis.call('RPUSH', KEYS[1], huge)
		else redis.call('SET', KEYS[1], huge) end`)},
	{"50,000 members", byScript(`if ARGV[1] == 'string' then return 0 end
		for i = 1, 50 do
			local a = {}
			for j = 1, 1000 do
				local m = 'm' .. (i * 1000 + j)
				if ARGV[1] == 'hash' then a[#a + 1] = m a[#a + 1] = 'x' elseif ARGV[1] == 'zset' then a[#a + 1] = '1e18' a[#a + 1] = m else a[#a + 1] = m end
			end
			redis.call(({hash = 'HSET', set = 'SADD', zset = 'ZADD', list = 'RPUSH'})[ARGV[1]], KEYS[1], unpack(a))
		end`)},
	{"large numbers", everywhere("99999999999999999999")}, {"negative numbers", everywhere("-9223372036854775808")}, {"infinite numbers", everywhere("1e999")},
	{"no text", everywhere("x\xff\x00\n")}, {"nothing", everywhere("")}, {"brackets", everywhere(strings.Repeat("[", 100_000))}, {"objects", everywhere(`{"a":{"b":[1e999]}}`)},
}

// byScript forges by a Lua script whose argument is the key's type.
func byScript(text string) forgery {
	return func(ctx context.Context, rdb *redis.Client, key, kind string) error {
		return rdb.Eval(ctx, text+"\nreturn 1", []string{key}, kind).Err()
	}
}

// everywhere puts a value into each field of a hash but those that lead to the others, and beside or in place of what
// other keys hold.
func everywhere(value string) forgery {
	return func(ctx context.Context, rdb *redis.Client, key, kind string) error {
		switch kind {
		case "hash":
			for _, field := range rdb.HKeys(ctx, key).Val() {
				if field == "state" || field == "generation" || field == "type" {
					continue
				}
				if err := rdb.HSet(ctx, key, field, value).Err(); err != nil {
					return err
				}
			}
			return nil
		case "set":
			return rdb.SAdd(ctx, key, value).Err()
		case "list":
			return rdb.RPush(ctx, key, value).Err()
		case "zset":
			return rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: value}).Err()
		}
		return rdb.Set(ctx, key, value, 0).Err()
	}
}

// TestHostileRedis puts every forgery into every key of a pool. Gateway, runner and warmer go on, stay small and say what
// is wrong; with the key as it was the pool serves again.
func TestHostileRedis(t *testing.T) {
	server := testenv.StartRedis(t)
	url, secret := "redis://"+server.Addr+"/0", strings.Repeat("s", 32)
	g := testenv.StartGateway(t, url, secret, calls.Catalogue{"m": "llm", "n": "llm", "e": "embedding"}.YAML(
		"hosts:\n  h: {driver: exec, devices: [cpu], address: \"127.0.0.1:9\", commands: {wake: [\"true\"], sleep: [\"true\"], state: [\"true\"]}}\n"))
	r, _ := testenv.StartRunner(t, url, secret, "h", t.TempDir(), "--devices=cpu")
	warmer := []string{"--redis-url=" + url, "--runner-secret=" + secret}
	w := testenv.StartProgram(t, "warmer", testenv.Build(t, "warmer"), append(warmer, "--every=100ms")...)
	programs := map[string]*testenv.Program{"gateway": g, "runner": r, "warmer": w}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: limit, WriteTimeout: limit})
	defer rdb.Close()
	ctx := t.Context()
	ask := func(model string) calls.Answer {
		return call(t, "POST", g.URL+"/v1/chat/completions", calls.ChatBody(model, 1, false), "x-wait-timeout: 1")
	}
	serves := func(what string) {
		t.Helper()
		kit.Becomes(t, what, 200, func() int { return ask("m").Status })
	}
	serves("before")
	if a := call(t, "POST", g.URL+"/v1/embeddings", `{"model":"e","input":"x"}`); !a.OK() {
		t.Fatal(a)
	}
	read := []string{"catalog", "host:h", "hosts", "model:h:m", "models:h", "queue:h", "settings:idle", "settings:options", "stats", "rev", "revs"} // by a sweep
	keys := rdb.Keys(ctx, "*").Val()
	for _, k := range append(slices.Clone(read), "begun:h", "wanted", "wake:h", "settings:options:mac", "settings:runtime", "settings:pins", "settings:aliases", "settings:registered", "npu:h") {
		if k = "rv:{main}:" + k; !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, f := range forgeries {
		for _, key := range keys {
			what, kind, was := f.name+" at "+key, rdb.Type(ctx, key).Val(), ""
			if kind != "none" {
				was = rdb.Dump(ctx, key).Val()
			} else if kind = "hash"; strings.Contains(key, "queue:") {
				kind = "list"
			}
			if err := f.put(ctx, rdb, key, kind); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, event := range []string{`{"kind":"host","host":"h","state":"ready"}`, `{"kind":"settings","state":"options"}`, `{"kind":"catalog","version":"x"}`} {
				rdb.Publish(ctx, "rv:{main}:events", event)
			}
			var asked sync.WaitGroup
			for _, path := range []string{"/v1/health", "/v1/models", "/running", "/v1/stats", "/api/ps", "/metrics", "/ready", "/v1/internal/config"} {
				asked.Go(func() {
					if a := call(t, "GET", g.URL+path, ""); a.Err != nil || a.Status != 200 && a.Status != 503 {
						t.Errorf("%s: GET %s: %v", what, path, a)
					}
				})
			}
			for _, model := range []string{"m", "n"} {
				asked.Go(func() {
					if a := ask(model); a.Err != nil || a.Status != 200 && a.Status != 503 && a.Status != 504 {
						t.Errorf("%s: %s: %v", what, model, a)
					}
				})
			}
			if slices.Contains(read, strings.TrimPrefix(key, "rv:{main}:")) {
				asked.Go(func() {
					out, _ := exec.CommandContext(ctx, testenv.Build(t, "warmer"), append(warmer, "--once", "--dry-run")...).CombinedOutput()
					if text := string(out); strings.Contains(text, "goroutine ") || len(text) > 8<<20 {
						t.Errorf("%s: the warmer says %.2000s", what, text)
					}
				})
			}
			asked.Wait()
			for name, p := range programs {
				select {
				case <-p.Exited():
					t.Fatalf("%s: the %s has ended: %v", what, name, p.State())
				default:
				}
				most := int64(512 << 20)
				if kit.Race { // the detector keeps as much again
					most *= 2
				}
				if n := rss(t, p.PID()); n > most {
					t.Errorf("%s: the %s has %d MiB", what, name, n>>20)
				}
			}
			rdb.Del(ctx, key)
			if was != "" {
				rdb.RestoreReplace(ctx, key, 0, was)
			}
		}
		serves("after " + f.name)
	}
	for name, p := range programs {
		log := p.Log()
		t.Logf("%s: %d MiB, a log of %d KiB", name, rss(t, p.PID())>>20, len(log)>>10)
		for _, word := range []string{"goroutine ", "panic", "request handler failed"} {
			if strings.Contains(log, word) {
				t.Errorf("the log of the %s has %q", name, word)
			}
		}
		if n := strings.Count(log, `msg="state store is corrupt`); n < 1 || n > 100 {
			t.Errorf("the log of the %s tells %d times of a corrupt store", name, n)
		}
		if len(log) > 8<<20 {
			t.Errorf("the log of the %s has %d MiB", name, len(log)>>20)
		}
	}
}
