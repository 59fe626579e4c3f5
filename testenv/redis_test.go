package testenv

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"reveille/testenv/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRedisIsPrivateAndRestartsEmpty(t *testing.T) {
	first, second := StartRedis(t), Redis(t)
	a := redis.NewClient(&redis.Options{Addr: first.Addr})
	b := redis.NewClient(&redis.Options{Addr: second})
	defer a.Close()
	defer b.Close()
	ctx := t.Context()
	if err := a.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n := b.Exists(ctx, "k").Val(); n != 0 {
		t.Error("two servers share data")
	}
	first.Restart()
	if n, err := a.Exists(ctx, "k").Result(); n != 0 || err != nil {
		t.Errorf("after restart: %d keys, %v", n, err)
	}
	first.Kill()
	first.Kill() // harmless
	if err := a.Ping(ctx).Err(); err == nil {
		t.Error("answers after Kill")
	}
}

func TestRedisFreeze(t *testing.T) {
	s := StartRedis(t, "--maxmemory", "64mb")
	c := redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: 100 * time.Millisecond, MaxRetries: -1})
	defer c.Close()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Freeze()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("answers while frozen")
	}
	s.Thaw()
	kit.Eventually(t, "an answer after Thaw", func() bool { return c.Ping(t.Context()).Err() == nil })
}

func TestMiniRedis(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: MiniRedis(t).Addr()})
	defer c.Close()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}
