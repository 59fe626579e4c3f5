package mmstats

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
)

func TestList(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: testenv.Redis(t)})
	t.Cleanup(func() { _ = c.Close() })
	ctx := t.Context()
	if got, err := List(ctx, c, "main"); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	for i := range 1200 {
		c.HSet(ctx, fmt.Sprintf("mm:main:%016x:%016x", uint64(0xfe00000000000001), i), "f", "12345")
	}
	c.HSet(ctx, "mm:main:00000000000000aa:0000000000000001", "f", strings.Repeat("x", 10000), "g", "y")
	c.HSet(ctx, "mm:main:used", "1", "2")
	c.HSet(ctx, "mm:other:00000000000000aa:0000000000000002", "f", "another pool's")
	c.HSet(ctx, "mm:main:zz00000000000000:0000000000000001", "f", "x")
	c.Set(ctx, "rv:{main}:x", 1, 0)
	got, err := List(ctx, c, "main")
	for i, u := range got {
		if least := []int64{1200 * 5, 10001}[i]; u.Bytes < least || u.Bytes > 50*least {
			t.Errorf("%+v", u)
		}
		got[i].Bytes = 0
	}
	want := []Usage{{Signature: 0xfe00000000000001, Entries: 1200}, {Signature: 0xaa, Entries: 2}} // of small entries, most is Redis's own
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	c.Set(ctx, "mm:main:00000000000000bb:0000000000000001", "not a hash", 0)
	if _, err := List(ctx, c, "main"); err == nil {
		t.Error("a key of another type went unnoticed")
	}
}
