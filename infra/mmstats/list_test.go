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
	ctx, id := t.Context(), strings.Repeat("0", 64)
	if got, err := List(ctx, c, "main"); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	for i := range 1200 {
		c.Set(ctx, fmt.Sprintf("mm:main:%016x:%064x", uint64(0xfe00000000000001), i), "12345", 0)
	}
	c.Set(ctx, "mm:main:00000000000000aa:"+id, strings.Repeat("x", 10000), 0)
	c.HSet(ctx, "mm:main:used", "1", "2")
	c.Set(ctx, "mm:other:00000000000000aa:"+id, "another pool's", 0)
	c.Set(ctx, "mm:main:zz00000000000000:"+id, "x", 0)
	c.Set(ctx, "rv:{main}:x", 1, 0)
	got, err := List(ctx, c, "main")
	for i, u := range got {
		if least := []int64{1200 * 5, 10000}[i]; u.Bytes < least || u.Bytes > 50*least {
			t.Errorf("%+v", u)
		}
		got[i].Bytes = 0
	}
	want := []Usage{{Signature: 0xfe00000000000001, Entries: 1200}, {Signature: 0xaa, Entries: 1}} // of small entries, most is Redis's own
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
}
